package businesskey

import (
	"fmt"
	"reflect"

	"github.com/ThreeDotsLabs/watermill/message"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// OperationIDTag is the struct tag that names a command's operation id: `inbox:"operation_id"`.
const OperationIDTag = "operation_id"

// Decorate gives a cqrs.CommandEventMarshalerDecorator its DecorateFunc: every command that is sent carries its operation
// id in the metadata operation_id. operationID takes it from the command; nil is [ByTag]. An empty id leaves the metadata
// alone, for commands that have none.
//
// It is not what requestreply.OperationID is: that one is made for each call of SendWithReply, to find the reply.
func Decorate(operationID func(command any) (string, error)) func(command any, msg *message.Message) error {
	if operationID == nil {
		operationID = ByTag
	}
	return func(command any, msg *message.Message) error {
		id, err := operationID(command)
		if err != nil || id == "" {
			return err
		}
		msg.Metadata.Set(OperationIDMetadataKey, id)
		return nil
	}
}

// ByTag takes the operation id from the one field of a struct with the tag `inbox:"operation_id"`, a string or something
// that prints as one (fmt.Stringer: a uuid.UUID). A command without such a field, or with an empty one, is
// inbox.ErrNoOperationID.
func ByTag(command any) (string, error) {
	v := reflect.ValueOf(command)
	for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return "", fmt.Errorf("%w: %T is not a struct", inbox.ErrNoOperationID, command)
	}
	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get("inbox") != OperationIDTag {
			continue
		}
		return textOf(command, v.Type().Field(i), v.Field(i))
	}
	return "", fmt.Errorf("%w: no field of %T has the tag `inbox:%q`", inbox.ErrNoOperationID, command, OperationIDTag)
}

func textOf(command any, field reflect.StructField, v reflect.Value) (string, error) {
	switch {
	case !field.IsExported():
		return "", fmt.Errorf("%w: field %s of %T is not exported", inbox.ErrNoOperationID, field.Name, command)
	case v.IsZero():
		return "", fmt.Errorf("%w: field %s of %T is empty", inbox.ErrNoOperationID, field.Name, command)
	}
	if s, ok := v.Interface().(fmt.Stringer); ok {
		return s.String(), nil
	}
	if v.Kind() == reflect.String {
		return v.String(), nil
	}
	return "", fmt.Errorf("%w: field %s of %T is neither a string nor a fmt.Stringer", inbox.ErrNoOperationID, field.Name, command)
}
