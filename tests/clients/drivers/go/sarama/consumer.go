package main

import (
	"errors"
	"reflect"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"sealog/drivers/protocol"
)

// Small polls, so that a loop has many transactions: a member of a group has no seek to set back what it polled.
const pollRecords = 17

// consumer reads partitions that it was given, or those that a membership claims.
type consumer struct {
	request *protocol.Request
	client  sarama.Client
	admin   sarama.ClusterAdmin
	reader  sarama.Consumer
	offsets sarama.OffsetManager
	managed map[protocol.Partition]sarama.PartitionOffsetManager
	member  *member

	mu      sync.Mutex
	sources map[protocol.Partition]<-chan *sarama.ConsumerMessage
	given   map[protocol.Partition]sarama.PartitionConsumer
}

func openConsumer(request *protocol.Request) (protocol.Handle, error) {
	config := newest()
	config.Consumer.IsolationLevel = sarama.ReadUncommitted
	if request.ReadCommitted() {
		config.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	config.Consumer.MaxWaitTime = request.MaxWait()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Return.Errors = true
	config.Consumer.Group.Session.Timeout = request.SessionTimeout()
	config.Consumer.Group.Heartbeat.Interval = protocol.Heartbeat
	config.Metadata.Retry.Max = 100
	// A fetch may wait for longer than other requests.
	config.Net.ReadTimeout += request.MaxWait()
	if request.InstanceID != nil {
		config.Consumer.Group.InstanceId = *request.InstanceID
	}
	client, err := sarama.NewClient([]string{request.Bootstrap}, config)
	if err != nil {
		return nil, err
	}
	admin, err := sarama.NewClusterAdminFromClient(client)
	return &consumer{
		request: request,
		client:  client,
		admin:   admin,
		managed: map[protocol.Partition]sarama.PartitionOffsetManager{},
		sources: map[protocol.Partition]<-chan *sarama.ConsumerMessage{},
		given:   map[protocol.Partition]sarama.PartitionConsumer{},
	}, err
}

func (c *consumer) Call(request *protocol.Request, _ *protocol.Driver) (any, error) {
	at := request.At()
	switch request.Op {
	case "assign":
		return nil, c.assign(request)
	case "subscribe":
		var err error
		c.member, err = join(c, request.Topic)
		return nil, err
	case "seek":
		if c.member != nil {
			return nil, errors.New("a member of a group cannot seek")
		}
		return nil, c.read(at, request.Offset)
	case "poll":
		return c.poll(request.Timeout())
	case "commit":
		if c.member != nil {
			return nil, c.member.commit(request.Offsets)
		}
		return nil, c.commit(request.Offsets)
	case "committed":
		return c.committed(at)
	case "assignment":
		return c.assignment(), nil
	case "begin_and_end":
		return c.beginAndEnd(at)
	case "close":
		within(c.close)
		return nil, nil
	}
	return nil, protocol.Unknown(request)
}

func (c *consumer) assign(request *protocol.Request) error {
	var err error
	if c.reader, err = sarama.NewConsumerFromClient(c.client); err != nil {
		return err
	}
	for _, partition := range request.Partitions {
		start := sarama.OffsetOldest
		if request.FromCommitted {
			offset, err := c.committed(partition)
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

// read a partition from an offset on: for this client a seek is another reader.
func (c *consumer) read(at protocol.Partition, offset int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if before := c.given[at]; before != nil {
		if err := before.Close(); err != nil {
			return err
		}
	}
	now, err := c.reader.ConsumePartition(at.Topic, at.Index, offset)
	if err != nil {
		return err
	}
	c.given[at], c.sources[at] = now, now.Messages()
	go func() {
		for err := range now.Errors() {
			sarama.Logger.Println(err)
		}
	}()
	return nil
}

// poll waits for a record of any partition, and takes what else is there.
func (c *consumer) poll(timeout time.Duration) ([]protocol.Record, error) {
	found := []protocol.Record{}
	deadline := time.Now().Add(timeout)
	for len(found) < pollRecords {
		c.mu.Lock()
		// What is claimed while this waits is seen by the next turn.
		turn := min(time.Until(deadline), 20*time.Millisecond)
		if len(found) > 0 {
			turn = 0
		}
		cases := []reflect.SelectCase{{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(time.After(turn))}}
		for _, source := range c.sources {
			cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(source)})
		}
		c.mu.Unlock()
		chosen, value, open := reflect.Select(cases)
		switch {
		case chosen == 0 && (len(found) > 0 || !time.Now().Before(deadline)):
			return found, nil
		case chosen != 0 && open:
			found = append(found, record(value.Interface().(*sarama.ConsumerMessage)))
		case chosen != 0:
			// The claim is over, and about to go from the sources.
			time.Sleep(time.Millisecond)
		}
	}
	return found, nil
}

func record(message *sarama.ConsumerMessage) protocol.Record {
	headers := []protocol.Header{}
	for _, header := range message.Headers {
		headers = append(headers, protocol.Header{Name: string(header.Key), Value: header.Value})
	}
	return protocol.Record{
		Topic: message.Topic, Partition: message.Partition, Offset: message.Offset,
		Key: message.Key, Value: message.Value, Headers: headers,
	}
}

func (c *consumer) assignment() []protocol.Partition {
	c.mu.Lock()
	defer c.mu.Unlock()
	held := []protocol.Partition{}
	for partition := range c.sources {
		held = append(held, partition)
	}
	return held
}

// commit without being a member.
func (c *consumer) commit(offsets []protocol.Offset) error {
	var err error
	if c.offsets == nil {
		if c.offsets, err = sarama.NewOffsetManagerFromClient(*c.request.Group, c.client); err != nil {
			return err
		}
	}
	for _, each := range offsets {
		if c.managed[each.Partition] == nil {
			if c.managed[each.Partition], err = c.offsets.ManagePartition(each.Topic, each.Index); err != nil {
				return err
			}
		}
		// Marking goes forward only, resetting back only.
		c.managed[each.Partition].MarkOffset(each.Offset, "")
		c.managed[each.Partition].ResetOffset(each.Offset, "")
	}
	c.offsets.Commit()
	for _, manager := range c.managed {
		select {
		case failed := <-manager.Errors():
			return failed
		default:
		}
	}
	return nil
}

func (c *consumer) committed(at protocol.Partition) (*int64, error) {
	found, err := c.admin.ListConsumerGroupOffsets(*c.request.Group, map[string][]int32{at.Topic: {at.Index}})
	if err != nil {
		return nil, err
	}
	block := found.GetBlock(at.Topic, at.Index)
	if block == nil || block.Offset < 0 {
		return nil, nil
	}
	if !errors.Is(block.Err, sarama.ErrNoError) {
		return nil, block.Err
	}
	return &block.Offset, nil
}

func (c *consumer) beginAndEnd(at protocol.Partition) ([]int64, error) {
	result := []int64{}
	options := &sarama.ListOffsetsOptions{IsolationLevel: c.client.Config().Consumer.IsolationLevel}
	for _, wanted := range []int64{sarama.OffsetOldest, sarama.OffsetNewest} {
		found, err := c.admin.ListOffsets(map[string]map[int32]int64{at.Topic: {at.Index: wanted}}, options)
		if err != nil {
			return nil, err
		}
		if err := found[at.Topic][at.Index].Err; err != nil && !errors.Is(err, sarama.ErrNoError) {
			return nil, err
		}
		result = append(result, found[at.Topic][at.Index].Offset)
	}
	return result, nil
}

// metadata says in whose name offsets are committed in a transaction.
func (c *consumer) metadata() *sarama.ConsumerGroupMetadata {
	if c.member != nil {
		return c.member.metadata()
	}
	return sarama.NewConsumerGroupMetadata(*c.request.Group)
}

func (c *consumer) close() {
	if c.member != nil {
		c.member.leave()
	}
	for _, reader := range c.given {
		_ = reader.Close()
	}
	for _, manager := range c.managed {
		manager.AsyncClose()
	}
	if c.offsets != nil {
		_ = c.offsets.Close()
	}
	_ = c.client.Close()
}
