package main

import (
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"sealog/drivers/protocol"
)

// sent gathers the outcomes of what was handed to the client.
type sent struct {
	mu    sync.Mutex
	first error
}

func (s *sent) outcome(_ *kgo.Record, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first == nil {
		s.first = err
	}
}

// take gives the first failure, and forgets it.
func (s *sent) take() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.first
	s.first = nil
	return first
}

func producerOptions(request *protocol.Request) []kgo.Opt {
	options := []kgo.Opt{
		kgo.SeedBrokers(request.Bootstrap),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(2 * time.Millisecond),
		kgo.RecordDeliveryTimeout(protocol.CallTimeout),
	}
	if request.Compression != "" {
		options = append(options, kgo.ProducerBatchCompression(compressions[request.Compression]))
	}
	if request.TransactionalID != nil {
		options = append(options,
			kgo.TransactionalID(*request.TransactionalID), kgo.TransactionTimeout(request.TransactionTimeout()))
	} else if !request.Idempotent {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	return options
}

func record(request *protocol.Request) *kgo.Record {
	record := &kgo.Record{
		Topic: request.Topic, Partition: request.Partition, Key: request.Key, Value: request.Value,
	}
	for _, header := range request.Headers {
		record.Headers = append(record.Headers, kgo.RecordHeader{Key: header.Name, Value: header.Value})
	}
	return record
}

type producer struct {
	client *kgo.Client
	sent   sent
}

func openProducer(request *protocol.Request) (protocol.Handle, error) {
	client, err := kgo.NewClient(producerOptions(request)...)
	return &producer{client: client}, err
}

func (p *producer) Call(request *protocol.Request, _ *protocol.Driver) (any, error) {
	ctx, cancel := limited()
	defer cancel()
	switch request.Op {
	case "init_transactions":
		_, _, err := p.client.ProducerID(ctx)
		return nil, err
	case "begin":
		return nil, p.client.BeginTransaction()
	case "send":
		p.client.Produce(context.Background(), record(request), p.sent.outcome)
		return nil, nil
	case "flush":
		return nil, p.flush(ctx)
	case "commit":
		if err := p.flush(ctx); err != nil {
			return nil, err
		}
		return nil, p.client.EndTransaction(ctx, kgo.TryCommit)
	case "abort":
		if err := p.client.AbortBufferedRecords(ctx); err != nil {
			return nil, err
		}
		_ = p.sent.take()
		return nil, p.client.EndTransaction(ctx, kgo.TryAbort)
	case "close":
		within(p.client.Close)
		return nil, nil
	}
	return nil, protocol.Unknown(request)
}

func (p *producer) flush(ctx context.Context) error {
	if err := p.client.Flush(ctx); err != nil {
		return err
	}
	return p.sent.take()
}
