package inboxtest_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/watermill-contrib/watermill-inbox/inboxtest"
)

// A client whose connection is cut while it waits for an answer.
func ExampleProxy() {
	// Some server; with PostgreSQL, put Addr into the connection string.
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer server.Close()
	go func() {
		for conn, err := server.Accept(); err == nil; conn, err = server.Accept() {
			go func() { _, _ = io.Copy(conn, conn) }()
		}
	}()

	proxy, err := inboxtest.NewProxy(server.Addr().String())
	if err != nil {
		panic(err)
	}
	defer proxy.Close()
	conn, err := net.Dial("tcp", proxy.Addr())
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	answer := bufio.NewReader(conn)

	fmt.Fprintln(conn, "first")
	line, err := answer.ReadString('\n')
	fmt.Printf("%q %v\n", line, err)

	proxy.StopForwarding()
	fmt.Fprintln(conn, "second")
	proxy.CutAll()
	line, err = answer.ReadString('\n')
	fmt.Printf("%q %t\n", line, err != nil)

	// Output:
	// "first\n" <nil>
	// "" true
}

// Every message is delivered twice; the publisher's message is acked after the second.
func ExampleDuplicateSubscriber() {
	pubSub := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	sub, err := inboxtest.NewDuplicateSubscriber(pubSub, inboxtest.DuplicateSubscriberConfig{Copies: 2})
	if err != nil {
		panic(err)
	}
	defer sub.Close()

	if err := pubSub.Publish("orders", message.NewMessage("order-42", nil)); err != nil {
		panic(err)
	}
	messages, err := sub.Subscribe(context.Background(), "orders")
	if err != nil {
		panic(err)
	}
	for range 2 {
		msg := <-messages
		fmt.Println(msg.UUID)
		msg.Ack()
	}

	// Output:
	// order-42
	// order-42
}

// The child runs TestInChild, which calls Point("here") on its way, and is killed there.
func ExampleChild() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	child, err := inboxtest.StartChild(ctx, "TestInChild", inboxtest.ChildConfig{Point: "here"})
	if err != nil {
		panic(err)
	}
	fmt.Println(child.WaitPoint(ctx))
	fmt.Println(child.Kill())

	// Output:
	// <nil>
	// <nil>
}
