package inbox

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// TwoPhaseConfig says where a two-phase consumer gets its messages and what it does with them.
type TwoPhaseConfig struct {
	// Name is the consumer, and the name of the handler that does the work; the intake's handler is Name + "_intake".
	// Required.
	Name string

	// Topic and Subscriber are the broker's. Required.
	Topic      string
	Subscriber message.Subscriber

	// Queue is a subscriber of the store's queue: NewSubscriber of the store. Required.
	Queue message.Subscriber

	// Handler does the work, in an attempt of its own each time. Required.
	Handler message.HandlerFunc

	// PublishTopic and Publisher are for what Handler returns. Default to none: Handler returns nothing then.
	PublishTopic string
	Publisher    message.Publisher
}

func (c TwoPhaseConfig) validate() error {
	for _, field := range [...]struct {
		name    string
		missing bool
	}{
		{"Name", c.Name == ""},
		{"Topic", c.Topic == ""},
		{"Subscriber", isNil(c.Subscriber)},
		{"Queue", isNil(c.Queue)},
		{"Handler", c.Handler == nil},
	} {
		if field.missing {
			return &ConfigError{"TwoPhaseConfig." + field.name, nil, "is required"}
		}
	}
	if (c.PublishTopic == "") != isNil(c.Publisher) {
		return &ConfigError{"TwoPhaseConfig.Publisher", c.Publisher, "PublishTopic and Publisher must both be set, or neither"}
	}
	return nil
}

// TwoPhase registers the two handlers of a consumer that stores its messages, acks them at once and works on them later:
// the intake, on the broker's topic, and the worker, on the queue. It gives the worker's handler, for middleware of its
// own. The inbox's middleware must be around the worker, and is not in the intake's way.
func TwoPhase(router *message.Router, in *Inbox, config TwoPhaseConfig) (*message.Handler, error) {
	if router == nil || in == nil {
		return nil, fmt.Errorf("inbox: TwoPhase: %w", &ConfigError{"router", nil, "router and inbox must not be nil"})
	}
	if err := config.validate(); err != nil {
		return nil, err
	}
	if _, ok := in.store.(QueueStore); !ok {
		return nil, fmt.Errorf("inbox: TwoPhase: %w", ErrNoQueue)
	}
	intake := config.Name + "_intake"
	if _, twice := in.intakes.LoadOrStore(intake, true); twice {
		return nil, &ConfigError{"TwoPhaseConfig.Name", config.Name, "has two-phase handlers already"}
	}
	router.AddConsumerHandler(intake, config.Topic, config.Subscriber, in.Intake(config.Name))
	topic := in.queueTopic(config.Name)
	if config.PublishTopic == "" {
		return router.AddConsumerHandler(config.Name, topic, config.Queue, func(msg *message.Message) error {
			produced, err := config.Handler(msg)
			if err == nil && len(produced) > 0 {
				err = fmt.Errorf("%w: it returned %d messages", ErrNoPublishTopic, len(produced))
			}
			return err
		}), nil
	}
	return router.AddHandler(config.Name, topic, config.Queue, config.PublishTopic, config.Publisher, config.Handler), nil
}

// queueTopic is the topic of the queue for a consumer: its whole name.
func (in *Inbox) queueTopic(name string) string {
	if in.config.Namespace == "" {
		return name
	}
	return in.config.Namespace + "/" + name
}
