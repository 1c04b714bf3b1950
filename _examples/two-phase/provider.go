package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// What the provider does with a call.
const (
	accepted = "accepted" // done now
	repeated = "repeated" // done before: its key is known
	refused  = "refused"  // the card is stolen
)

// entry is one line of the provider's log.
type entry struct {
	What   string `json:"what"`
	Order  int    `json:"order"`
	Key    string `json:"key"`
	Answer string `json:"answer"`
}

// fakeProvider is the other system, in a process of its own. It takes its time, does a call once for each idempotency key,
// and refuses stolen cards. Whatever it does is in its log before it answers.
type fakeProvider struct {
	log *os.File

	mu   sync.Mutex
	done map[string]string // the answer to each key
}

// serveProvider is the whole life of the provider's process. It says its address on stdout.
func serveProvider(ctx context.Context, dir string) error {
	log, err := os.OpenFile(providerLog(dir), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Printf("%shttp://%s\n", addressLine, listener.Addr())
	server := http.Server{Handler: &fakeProvider{log: log, done: map[string]string{}}, ReadHeaderTimeout: time.Second}
	return server.Serve(listener)
}

func (f *fakeProvider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e := entry{What: strings.TrimPrefix(r.URL.Path, "/"), Key: r.Header.Get("Idempotency-Key")}
	e.Order, _ = strconv.Atoi(r.URL.Query().Get("order"))
	time.Sleep(10 * time.Millisecond)
	answer, err := f.do(&e)
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	case e.Answer == refused:
		http.Error(w, "stolen card", http.StatusPaymentRequired)
	case e.Answer == accepted && e.What == "charge" && e.Order%lostReplyEvery == 0:
		panic(http.ErrAbortHandler) // charged, but the client will never hear of it
	default:
		fmt.Fprint(w, answer)
	}
}

func (f *fakeProvider) do(e *entry) (answer string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	answer, known := f.done[e.Key]
	switch {
	case known:
		e.Answer = repeated
	case e.What == "charge" && e.Order%stolenEvery == 0:
		e.Answer = refused
	default:
		e.Answer = accepted
		answer = fmt.Sprintf("%s-%d", e.What, len(f.done)+1)
		f.done[e.Key] = answer
	}
	line, err := json.Marshal(e)
	if err == nil {
		_, err = f.log.Write(append(line, '\n'))
	}
	return answer, err
}

func providerLog(dir string) string { return filepath.Join(dir, "provider.jsonl") }

// provider is the service's side of it.
type provider struct {
	url    string
	client *http.Client
}

// newProvider gives a client that does not try again by itself, as that of net/http does for calls with an idempotency key
// on a connection that it has used before: the queue's attempts are to be seen here.
func newProvider(url string) provider {
	return provider{url, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}}
}

var (
	errRefused = errors.New("the provider refuses")
	errNoReply = errors.New("no reply from the provider")
)

func (p provider) post(ctx context.Context, what string, order int, key string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("%s/%s?order=%d", p.url, what, order), http.NoBody)
	if err != nil {
		return "", err
	}
	r.Header.Set("Idempotency-Key", key)
	response, err := p.client.Do(r)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errNoReply, err)
	}
	defer response.Body.Close() //nolint:errcheck // it was only read
	body, err := io.ReadAll(io.LimitReader(response.Body, 1000))
	switch {
	case err != nil:
		return "", fmt.Errorf("%w: %w", errNoReply, err)
	case response.StatusCode == http.StatusPaymentRequired:
		return "", fmt.Errorf("%w: %s", errRefused, strings.TrimSpace(string(body)))
	case response.StatusCode != http.StatusOK:
		return "", fmt.Errorf("%w: %s", errNoReply, response.Status)
	}
	return string(body), nil
}
