package main

import (
	"context"
	"errors"
	"sync"

	"github.com/IBM/sarama"

	"sealog/drivers/protocol"
)

// member is a consumer's part in a group: its claims are the consumer's sources while a session lasts.
type member struct {
	consumer *consumer
	group    sarama.ConsumerGroup
	stop     context.CancelFunc
	stopped  chan struct{}

	mu      sync.Mutex
	session sarama.ConsumerGroupSession
	failed  error
}

func join(c *consumer, topic string) (*member, error) {
	group, err := sarama.NewConsumerGroupFromClient(*c.request.Group, c.client)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	m := &member{consumer: c, group: group, stop: stop, stopped: make(chan struct{})}
	go func() {
		for err := range group.Errors() {
			sarama.Logger.Println(err)
			m.mu.Lock()
			m.failed = err
			m.mu.Unlock()
		}
	}()
	go func() {
		defer close(m.stopped)
		// It returns with every rebalance.
		for ctx.Err() == nil {
			if err := group.Consume(ctx, []string{topic}, m); errors.Is(err, sarama.ErrClosedConsumerGroup) {
				return
			}
		}
	}()
	return m, nil
}

// Setup is called when a session begins.
func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.session = session
	return nil
}

// Cleanup is called when all claims of a session are over.
func (m *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

// ConsumeClaim lends a claim to the consumer until the session ends.
func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	at := protocol.Partition{Topic: claim.Topic(), Index: claim.Partition()}
	m.consumer.mu.Lock()
	m.consumer.sources[at] = claim.Messages()
	m.consumer.mu.Unlock()
	<-session.Context().Done()
	m.consumer.mu.Lock()
	delete(m.consumer.sources, at)
	m.consumer.mu.Unlock()
	return nil
}

func (m *member) commit(offsets []protocol.Offset) error {
	m.mu.Lock()
	session := m.session
	m.failed = nil
	m.mu.Unlock()
	for _, each := range offsets {
		// Marking goes forward only, resetting back only.
		session.MarkOffset(each.Topic, each.Index, each.Offset, "")
		session.ResetOffset(each.Topic, each.Index, each.Offset, "")
	}
	session.Commit()
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.failed
}

func (m *member) metadata() *sarama.ConsumerGroupMetadata {
	m.mu.Lock()
	defer m.mu.Unlock()
	var instance *string
	if m.consumer.request.InstanceID != nil {
		instance = m.consumer.request.InstanceID
	}
	return sarama.NewConsumerGroupMetadataFromSession(m.session, *m.consumer.request.Group, instance)
}

func (m *member) leave() {
	m.stop()
	_ = m.group.Close()
	<-m.stopped
}
