package main

import (
	"errors"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"sealog/drivers/protocol"
)

type producer struct {
	client sarama.AsyncProducer

	mu       sync.Mutex
	answered *sync.Cond
	waiting  int
	first    error
}

func openProducer(request *protocol.Request) (protocol.Handle, error) {
	config := newest()
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Return.Errors = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Compression = compressions[request.Compression]
	// A broker that restarts is away for longer than this client tries by itself.
	config.Producer.Retry.Max = 100
	config.Producer.Transaction.Retry.Max = 100
	config.Metadata.Retry.Max = 100
	if request.Idempotent {
		config.Producer.Idempotent = true
		config.Net.MaxOpenRequests = 1
	}
	if request.TransactionalID != nil {
		config.Producer.Transaction.ID = *request.TransactionalID
		config.Producer.Transaction.Timeout = request.TransactionTimeout()
	}
	client, err := sarama.NewAsyncProducer([]string{request.Bootstrap}, config)
	if err != nil {
		return nil, err
	}
	p := &producer{client: client}
	p.answered = sync.NewCond(&p.mu)
	go func() {
		for range client.Successes() {
			p.outcome(nil)
		}
	}()
	go func() {
		for failed := range client.Errors() {
			p.outcome(failed.Err)
		}
	}()
	return p, nil
}

func (p *producer) outcome(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting--
	if p.first == nil {
		p.first = err
	}
	p.answered.Broadcast()
}

func (p *producer) Call(request *protocol.Request, driver *protocol.Driver) (any, error) {
	switch request.Op {
	case "init_transactions":
		// A new producer of this client comes with that done.
		return nil, nil
	case "begin":
		return nil, p.client.BeginTxn()
	case "send":
		p.send(request)
		return nil, nil
	case "flush":
		return nil, p.flush()
	case "send_offsets":
		return nil, p.sendOffsets(driver.Handle(request.Consumer).(*consumer), request.Offsets)
	case "commit":
		err := p.client.CommitTxn()
		// What ended the transaction says more than that it ended.
		return nil, errors.Join(p.flush(), err)
	case "abort":
		err := p.client.AbortTxn()
		_ = p.flush()
		return nil, err
	case "close":
		within(func() { _ = p.client.Close() })
		return nil, nil
	}
	return nil, protocol.Unknown(request)
}

func (p *producer) send(request *protocol.Request) {
	message := &sarama.ProducerMessage{
		Topic: request.Topic, Partition: request.Partition, Value: sarama.ByteEncoder(request.Value),
	}
	if request.Key != nil {
		message.Key = sarama.ByteEncoder(request.Key)
	}
	for _, header := range request.Headers {
		message.Headers = append(message.Headers, sarama.RecordHeader{Key: []byte(header.Name), Value: header.Value})
	}
	p.mu.Lock()
	p.waiting++
	p.mu.Unlock()
	p.client.Input() <- message
}

// flush waits for all outcomes, gives the first failure, and forgets it.
func (p *producer) flush() error {
	late := false
	timer := time.AfterFunc(protocol.CallTimeout, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		late = true
		p.answered.Broadcast()
	})
	defer timer.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.waiting > 0 && !late {
		p.answered.Wait()
	}
	if late {
		return errors.New("records without an answer")
	}
	first := p.first
	p.first = nil
	return first
}

func (p *producer) sendOffsets(from *consumer, offsets []protocol.Offset) error {
	wanted := map[string][]*sarama.PartitionOffsetMetadata{}
	for _, each := range offsets {
		wanted[each.Topic] = append(wanted[each.Topic], &sarama.PartitionOffsetMetadata{
			Partition: each.Index, Offset: each.Offset, LeaderEpoch: -1,
		})
	}
	return p.client.AddOffsetsToTxnWithGroupMetadata(wanted, from.metadata())
}
