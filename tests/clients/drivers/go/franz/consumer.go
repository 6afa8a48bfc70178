package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"sealog/drivers/protocol"
)

// consumer makes its client when it knows whether it is a group's: that is an option of the client.
type consumer struct {
	request *protocol.Request
	client  *kgo.Client
	member  bool
	// admin asks for offsets, with connections of its own.
	admin *kadm.Client

	mu       sync.Mutex
	assigned map[protocol.Partition]bool
	// reached is the offset behind the last record of a partition, also one that no application sees.
	reached map[protocol.Partition]int64
}

func openConsumer(request *protocol.Request) (protocol.Handle, error) {
	admin, err := kgo.NewClient(kgo.SeedBrokers(request.Bootstrap))
	return newConsumer(request, admin), err
}

func newConsumer(request *protocol.Request, admin *kgo.Client) *consumer {
	return &consumer{
		request:  request,
		admin:    kadm.NewClient(admin),
		assigned: map[protocol.Partition]bool{},
		reached:  map[protocol.Partition]int64{},
	}
}

func (c *consumer) options() []kgo.Opt {
	isolation := kgo.ReadUncommitted()
	if c.request.ReadCommitted() {
		isolation = kgo.ReadCommitted()
	}
	return []kgo.Opt{
		kgo.SeedBrokers(c.request.Bootstrap),
		kgo.FetchIsolationLevel(isolation),
		kgo.FetchMaxWait(c.request.MaxWait()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		// Without them this client tells nobody that it got past a transaction's end.
		kgo.KeepControlRecords(),
	}
}

func (c *consumer) groupOptions(topic string) []kgo.Opt {
	options := []kgo.Opt{
		kgo.ConsumerGroup(*c.request.Group),
		kgo.ConsumeTopics(topic),
		kgo.DisableAutoCommit(),
		kgo.SessionTimeout(c.request.SessionTimeout()),
		kgo.HeartbeatInterval(protocol.Heartbeat),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, now map[string][]int32) { c.hold(now, true) }),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, gone map[string][]int32) { c.hold(gone, false) }),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, gone map[string][]int32) { c.hold(gone, false) }),
	}
	if c.request.GroupProtocol == "consumer" {
		// Without this it stays with the classic protocol, whatever the broker has; its name of "uniform" is sticky.
		options = append(options, kgo.Balancers(kgo.StickyBalancer()), kgo.ServerSideBalancer())
	}
	if c.request.InstanceID != nil {
		options = append(options, kgo.InstanceID(*c.request.InstanceID))
	}
	return options
}

func (c *consumer) hold(partitions map[string][]int32, held bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for topic, indexes := range partitions {
		for _, index := range indexes {
			if held {
				c.assigned[protocol.Partition{Topic: topic, Index: index}] = true
			} else {
				delete(c.assigned, protocol.Partition{Topic: topic, Index: index})
			}
		}
	}
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
		c.client, err = kgo.NewClient(append(c.options(), c.groupOptions(request.Topic)...)...)
		c.member = true
		return nil, err
	case "seek":
		c.seek(at, request.Offset)
		return nil, nil
	case "poll":
		return c.poll(request, c.client.PollFetches)
	case "position":
		return c.reached[at], nil
	case "commit":
		return nil, c.commit(ctx, request.Offsets)
	case "committed":
		found, err := c.admin.FetchOffsetsForTopics(ctx, *c.request.Group, at.Topic)
		if err != nil {
			return nil, err
		}
		if offset, ok := found.Lookup(at.Topic, at.Index); ok && offset.At >= 0 {
			return offset.At, offset.Err
		}
		return nil, nil
	case "assignment":
		c.mu.Lock()
		defer c.mu.Unlock()
		held := []protocol.Partition{}
		for partition := range c.assigned {
			held = append(held, partition)
		}
		return held, nil
	case "begin_and_end":
		return c.beginAndEnd(ctx, at)
	case "close":
		within(func() {
			if c.client != nil {
				c.client.CloseAllowingRebalance()
			}
			c.admin.Close()
		})
		return nil, nil
	}
	return nil, protocol.Unknown(request)
}

func (c *consumer) assign(ctx context.Context, request *protocol.Request) error {
	wanted := map[string]map[int32]kgo.Offset{}
	for _, partition := range request.Partitions {
		c.assigned[partition] = true
		start := kgo.NewOffset().AtStart()
		if request.FromCommitted {
			found, err := c.admin.FetchOffsetsForTopics(ctx, *c.request.Group, partition.Topic)
			if err != nil {
				return err
			}
			if offset, ok := found.Lookup(partition.Topic, partition.Index); ok && offset.At >= 0 {
				start = kgo.NewOffset().At(offset.At)
				c.reached[partition] = offset.At
			}
		}
		if wanted[partition.Topic] == nil {
			wanted[partition.Topic] = map[int32]kgo.Offset{}
		}
		wanted[partition.Topic][partition.Index] = start
	}
	var err error
	c.client, err = kgo.NewClient(append(c.options(), kgo.ConsumePartitions(wanted))...)
	return err
}

func (c *consumer) seek(at protocol.Partition, offset int64) {
	c.reached[at] = offset
	if c.member {
		there := kgo.EpochOffset{Epoch: -1, Offset: offset}
		c.client.SetOffsets(map[string]map[int32]kgo.EpochOffset{at.Topic: {at.Index: there}})
		return
	}
	// SetOffsets would pass over a partition that this client has not begun with yet.
	c.client.RemoveConsumePartitions(map[string][]int32{at.Topic: {at.Index}})
	c.client.AddConsumePartitions(map[string]map[int32]kgo.Offset{at.Topic: {at.Index: kgo.NewOffset().At(offset)}})
}

func (c *consumer) poll(
	request *protocol.Request, fetch func(context.Context) kgo.Fetches,
) ([]protocol.Record, error) {
	found := []protocol.Record{}
	if c.client == nil {
		return found, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), request.Timeout())
	defer cancel()
	fetches := fetch(ctx)
	for _, failed := range fetches.Errors() {
		var session *kgo.ErrGroupSession
		switch {
		case errors.Is(failed.Err, context.DeadlineExceeded):
		case errors.As(failed.Err, &session):
			// For information: the client goes on trying to join its group.
			fmt.Fprintln(os.Stderr, failed.Err)
		default:
			return nil, failed.Err
		}
	}
	fetches.EachRecord(func(record *kgo.Record) {
		c.reached[protocol.Partition{Topic: record.Topic, Index: record.Partition}] = record.Offset + 1
		if record.Attrs.IsControl() {
			return
		}
		headers := []protocol.Header{}
		for _, header := range record.Headers {
			headers = append(headers, protocol.Header{Name: header.Key, Value: header.Value})
		}
		found = append(found, protocol.Record{
			Topic: record.Topic, Partition: record.Partition, Offset: record.Offset,
			Key: record.Key, Value: record.Value, Headers: headers,
		})
	})
	return found, nil
}

func (c *consumer) commit(ctx context.Context, wanted []protocol.Offset) error {
	if !c.member {
		offsets := kadm.Offsets{}
		for _, each := range wanted {
			offsets.AddOffset(each.Topic, each.Index, each.Offset, -1)
		}
		answered, err := c.admin.CommitOffsets(ctx, *c.request.Group, offsets)
		return errors.Join(err, answered.Error())
	}
	offsets := map[string]map[int32]kgo.EpochOffset{}
	for _, each := range wanted {
		if offsets[each.Topic] == nil {
			offsets[each.Topic] = map[int32]kgo.EpochOffset{}
		}
		offsets[each.Topic][each.Index] = kgo.EpochOffset{Epoch: -1, Offset: each.Offset}
	}
	var failed error
	c.client.CommitOffsetsSync(ctx, offsets, func(
		_ *kgo.Client, _ *kmsg.OffsetCommitRequest, response *kmsg.OffsetCommitResponse, err error,
	) {
		failed = err
		for _, topic := range response.Topics {
			for _, partition := range topic.Partitions {
				failed = errors.Join(failed, kerr.ErrorForCode(partition.ErrorCode))
			}
		}
	})
	return failed
}

func (c *consumer) beginAndEnd(ctx context.Context, at protocol.Partition) ([]int64, error) {
	ends := c.admin.ListEndOffsets
	if c.request.ReadCommitted() {
		ends = c.admin.ListCommittedOffsets
	}
	result := []int64{}
	for _, list := range []func(context.Context, ...string) (kadm.ListedOffsets, error){
		c.admin.ListStartOffsets, ends,
	} {
		listed, err := list(ctx, at.Topic)
		if err != nil {
			return nil, err
		}
		offset, _ := listed.Lookup(at.Topic, at.Index)
		if offset.Err != nil {
			return nil, offset.Err
		}
		result = append(result, offset.Offset)
	}
	return result, nil
}
