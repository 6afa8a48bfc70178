package main

import (
	"context"

	"github.com/twmb/franz-go/pkg/kgo"

	"sealog/drivers/protocol"
)

// Small polls, so that a loop has many transactions.
const pollRecords = 17

// session is this client's way to consume, transform and produce: one client that is both ends of a transaction.
type session struct {
	*consumer
	opened *protocol.Request
	group  *kgo.GroupTransactSession
	sent   sent
}

func openSession(request *protocol.Request) (protocol.Handle, error) {
	admin, err := kgo.NewClient(kgo.SeedBrokers(request.Bootstrap))
	return &session{consumer: newConsumer(request, admin), opened: request}, err
}

func (s *session) Call(request *protocol.Request, driver *protocol.Driver) (any, error) {
	ctx, cancel := limited()
	defer cancel()
	switch request.Op {
	case "subscribe":
		options := append(s.options(), s.groupOptions(request.Topic)...)
		group, err := kgo.NewGroupTransactSession(append(options, producerOptions(s.opened)...)...)
		if err != nil {
			return nil, err
		}
		s.group, s.client, s.member = group, group.Client(), true
		_, _, err = s.client.ProducerID(ctx)
		return nil, err
	case "poll":
		return s.poll(request, func(ctx context.Context) kgo.Fetches { return s.group.PollRecords(ctx, pollRecords) })
	case "begin":
		return nil, s.group.Begin()
	case "send":
		s.group.Produce(context.Background(), record(request), s.sent.outcome)
		return nil, nil
	case "flush":
		return nil, s.flush(ctx)
	case "end":
		if request.Commit {
			if err := s.flush(ctx); err != nil {
				return nil, err
			}
		}
		committed, err := s.group.End(ctx, kgo.TransactionEndTry(request.Commit))
		_ = s.sent.take()
		return committed, err
	}
	return s.consumer.Call(request, driver)
}

func (s *session) flush(ctx context.Context) error {
	if err := s.client.Flush(ctx); err != nil {
		return err
	}
	return s.sent.take()
}
