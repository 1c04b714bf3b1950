package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// The witnesses. They do not know of each other: the subscriber's decorator sees acks and nacks, the inbox's Observer
// sees outcomes.
const (
	subscriber = "subscriber"
	observer   = "observer"
)

// What the subscriber's decorator writes; the Observer writes its outcomes.
const (
	whatReceived = "received"
	whatAcked    = "acked"
	whatNacked   = "nacked"
)

// entry is one line of the journal.
type entry struct {
	Process int    `json:"process"`
	Witness string `json:"witness"`
	What    string `json:"what"`
	UUID    string `json:"uuid"`
	Copy    string `json:"copy,omitempty"`
}

// journal is a file to which the witnesses append as it happens, each line in one write: a SIGKILL loses none of them.
type journal struct {
	process int
	file    *os.File
	acked   chan struct{}  // one for each ack, after its line
	open    sync.WaitGroup // deliveries that have not ended
}

func openJournal(dir string, process int) (*journal, error) {
	file, err := os.OpenFile(journalFile(dir), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return &journal{process: process, file: file, acked: make(chan struct{})}, nil
}

// observe is the Observer of the inbox.
func (j *journal) observe(_ context.Context, e inbox.Event) {
	j.write(entry{Witness: observer, What: string(e.Outcome), UUID: e.Key.ID})
}

// decorate is the decorator of the subscriber. It counts a delivery when it ends, by an ack or a nack; a delivery that
// is open when its process is killed has not ended.
func (j *journal) decorate(sub message.Subscriber) (message.Subscriber, error) {
	return message.MessageTransformSubscriberDecorator(func(msg *message.Message) {
		e := entry{Witness: subscriber, What: whatReceived, UUID: msg.UUID, Copy: msg.Metadata.Get(copyField)}
		j.write(e)
		j.open.Go(func() {
			select {
			case <-msg.Acked():
				e.What = whatAcked
				j.write(e)
				j.acked <- struct{}{}
			case <-msg.Nacked():
				e.What = whatNacked
				j.write(e)
			}
		})
	})(sub)
}

// waitForAcks returns when n messages are acked and every delivery so far is written down.
func (j *journal) waitForAcks(ctx context.Context, n int) error {
	for range n {
		select {
		case <-j.acked:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	j.open.Wait()
	return nil
}

func (j *journal) write(e entry) {
	e.Process = j.process
	line, err := json.Marshal(e)
	if err == nil {
		_, err = j.file.Write(append(line, '\n'))
	}
	if err != nil {
		log.Fatalln("quickstart: the journal cannot be written, so nothing can be counted:", err)
	}
}

func readJournal(dir string) ([]entry, error) {
	file, err := os.Open(journalFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // it was only read
	var entries []entry
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var e entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	return entries, lines.Err()
}

func journalFile(dir string) string { return filepath.Join(dir, "journal.jsonl") }
