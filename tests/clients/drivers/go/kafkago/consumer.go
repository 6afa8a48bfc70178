package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"sealog/drivers/protocol"
)

// consumer has a reader per partition, for those that it was given or those of its group's present generation.
type consumer struct {
	request *protocol.Request
	network *kafka.Transport
	client  *kafka.Client
	member  *member

	mu      sync.Mutex
	readers map[protocol.Partition]*kafka.Reader
}

func openConsumer(request *protocol.Request) (protocol.Handle, error) {
	network := transport()
	address := kafka.TCP(request.Bootstrap)
	return &consumer{
		request: request,
		network: network,
		client:  &kafka.Client{Addr: address, Timeout: protocol.CallTimeout, Transport: network},
		readers: map[protocol.Partition]*kafka.Reader{},
	}, nil
}

func (c *consumer) isolation() kafka.IsolationLevel {
	if c.request.ReadCommitted() {
		return kafka.ReadCommitted
	}
	return kafka.ReadUncommitted
}

func (c *consumer) Call(request *protocol.Request, _ *protocol.Driver) (any, error) {
	ctx, cancel := limited()
	defer cancel()
	at := request.At()
	switch request.Op {
	case "assign":
		return nil, c.assign(ctx, request)
	case "subscribe":
		var err error
		c.member, err = join(c, request.Topic)
		return nil, err
	case "poll":
		return c.poll(request.Timeout())
	case "commit":
		return nil, c.commit(ctx, request.Offsets)
	case "committed":
		return c.committed(ctx, at)
	case "begin_and_end":
		return c.beginAndEnd(ctx, at)
	case "close":
		return nil, c.close()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch request.Op {
	case "seek":
		return nil, c.readers[at].SetOffset(request.Offset)
	case "position":
		return c.readers[at].Offset(), nil
	case "assignment":
		held := []protocol.Partition{}
		for partition := range c.readers {
			held = append(held, partition)
		}
		return held, nil
	}
	return nil, protocol.Unknown(request)
}

func (c *consumer) assign(ctx context.Context, request *protocol.Request) error {
	for _, partition := range request.Partitions {
		start := kafka.FirstOffset
		if request.FromCommitted {
			offset, err := c.committed(ctx, partition)
			if err != nil {
				return err
			}
			if offset != nil {
				start = *offset
			}
		}
		if err := c.read(partition, start); err != nil {
			return err
		}
	}
	return nil
}

func (c *consumer) read(at protocol.Partition, offset int64) error {
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers:        []string{c.request.Bootstrap},
		Topic:          at.Topic,
		Partition:      int(at.Index),
		MaxWait:        c.request.MaxWait(),
		IsolationLevel: c.isolation(),
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readers[at] = reader
	return reader.SetOffset(offset)
}

// poll goes round the readers until a record came, and takes what else is there.
func (c *consumer) poll(timeout time.Duration) ([]protocol.Record, error) {
	found := []protocol.Record{}
	deadline := time.Now().Add(timeout)
	for len(found) == 0 && time.Now().Before(deadline) {
		c.mu.Lock()
		readers := make([]*kafka.Reader, 0, len(c.readers))
		for _, reader := range c.readers {
			readers = append(readers, reader)
		}
		c.mu.Unlock()
		if len(readers) == 0 {
			time.Sleep(5 * time.Millisecond)
		}
		for _, reader := range readers {
			for {
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
				message, err := reader.FetchMessage(ctx)
				cancel()
				if err != nil {
					// A reader that is closed meanwhile ends with EOF: its generation is over.
					break
				}
				found = append(found, record(message))
			}
		}
	}
	return found, nil
}

func record(message kafka.Message) protocol.Record {
	headers := []protocol.Header{}
	for _, header := range message.Headers {
		headers = append(headers, protocol.Header{Name: header.Key, Value: header.Value})
	}
	return protocol.Record{
		Topic: message.Topic, Partition: int32(message.Partition), Offset: message.Offset,
		Key: message.Key, Value: message.Value, Headers: headers,
	}
}

func (c *consumer) commit(ctx context.Context, offsets []protocol.Offset) error {
	if c.member != nil {
		return c.member.commit(offsets)
	}
	topics := map[string][]kafka.OffsetCommit{}
	for _, each := range offsets {
		topics[each.Topic] = append(topics[each.Topic], kafka.OffsetCommit{
			Partition: int(each.Index), Offset: each.Offset,
		})
	}
	response, err := c.client.OffsetCommit(ctx, &kafka.OffsetCommitRequest{
		GroupID: *c.request.Group, GenerationID: -1, Topics: topics,
	})
	if err != nil {
		return err
	}
	for _, partitions := range response.Topics {
		for _, partition := range partitions {
			err = errors.Join(err, partition.Error)
		}
	}
	return err
}

func (c *consumer) committed(ctx context.Context, at protocol.Partition) (*int64, error) {
	response, err := c.client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{
		GroupID: *c.request.Group, Topics: map[string][]int{at.Topic: {int(at.Index)}},
	})
	if err != nil {
		return nil, err
	}
	if response.Error != nil {
		return nil, response.Error
	}
	for _, partition := range response.Topics[at.Topic] {
		if partition.Error != nil {
			return nil, partition.Error
		}
		if partition.CommittedOffset >= 0 {
			return &partition.CommittedOffset, nil
		}
	}
	return nil, nil
}

func (c *consumer) beginAndEnd(ctx context.Context, at protocol.Partition) ([]int64, error) {
	result := []int64{}
	for _, wanted := range []kafka.OffsetRequest{
		kafka.FirstOffsetOf(int(at.Index)), kafka.LastOffsetOf(int(at.Index)),
	} {
		response, err := c.client.ListOffsets(ctx, &kafka.ListOffsetsRequest{
			Topics: map[string][]kafka.OffsetRequest{at.Topic: {wanted}}, IsolationLevel: c.isolation(),
		})
		if err != nil {
			return nil, err
		}
		for _, partition := range response.Topics[at.Topic] {
			if partition.Error != nil {
				return nil, partition.Error
			}
			result = append(result, max(partition.FirstOffset, partition.LastOffset))
		}
	}
	return result, nil
}

func (c *consumer) close() error {
	defer c.network.CloseIdleConnections()
	if c.member != nil {
		return c.member.leave()
	}
	return c.drop()
}

// drop closes the readers, and holds nothing after it.
func (c *consumer) drop() error {
	c.mu.Lock()
	readers := c.readers
	c.readers = map[protocol.Partition]*kafka.Reader{}
	c.mu.Unlock()
	var err error
	for _, reader := range readers {
		err = errors.Join(err, reader.Close())
	}
	return err
}
