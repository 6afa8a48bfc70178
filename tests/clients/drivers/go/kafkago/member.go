package main

import (
	"context"
	"errors"
	"log"
	"os"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"sealog/drivers/protocol"
)

// member follows the generations of a group. A Reader with a group would not tell what it holds.
type member struct {
	consumer *consumer
	group    *kafka.ConsumerGroup
	stopped  chan struct{}

	mu         sync.Mutex
	generation *kafka.Generation
}

func join(c *consumer, topic string) (*member, error) {
	group, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID:                *c.request.Group,
		Brokers:           []string{c.request.Bootstrap},
		Topics:            []string{topic},
		HeartbeatInterval: protocol.Heartbeat,
		SessionTimeout:    c.request.SessionTimeout(),
		JoinGroupBackoff:  200 * time.Millisecond,
		StartOffset:       kafka.FirstOffset,
		ErrorLogger:       log.New(os.Stderr, "", log.Lmicroseconds),
	})
	if err != nil {
		return nil, err
	}
	m := &member{consumer: c, group: group, stopped: make(chan struct{})}
	go m.run()
	return m, nil
}

func (m *member) run() {
	defer close(m.stopped)
	for {
		generation, err := m.group.Next(context.Background())
		if errors.Is(err, kafka.ErrGroupClosed) {
			return
		}
		if err != nil {
			// For information: the group goes on with the next one.
			log.Println(err)
			continue
		}
		m.mu.Lock()
		m.generation = generation
		m.mu.Unlock()
		for topic, partitions := range generation.Assignments {
			for _, partition := range partitions {
				at := protocol.Partition{Topic: topic, Index: int32(partition.ID)}
				if err := m.consumer.read(at, partition.Offset); err != nil {
					log.Println(err)
				}
			}
		}
		generation.Start(func(ctx context.Context) {
			<-ctx.Done()
			_ = m.consumer.drop()
		})
	}
}

func (m *member) commit(offsets []protocol.Offset) error {
	wanted := map[string]map[int]int64{}
	for _, each := range offsets {
		if wanted[each.Topic] == nil {
			wanted[each.Topic] = map[int]int64{}
		}
		wanted[each.Topic][int(each.Index)] = each.Offset
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.generation.CommitOffsets(wanted)
}

func (m *member) leave() error {
	err := m.group.Close()
	<-m.stopped
	return err
}
