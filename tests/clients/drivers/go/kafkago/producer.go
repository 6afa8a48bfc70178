package main

import (
	"time"

	"github.com/segmentio/kafka-go"

	"sealog/drivers/protocol"
)

// producer hands its records over in flush: this client's write waits for the answer.
type producer struct {
	writer  *kafka.Writer
	network *kafka.Transport
	waiting []kafka.Message
}

func openProducer(request *protocol.Request) (protocol.Handle, error) {
	network := transport()
	writer := &kafka.Writer{
		Addr:         kafka.TCP(request.Bootstrap),
		Transport:    network,
		RequiredAcks: kafka.RequireAll,
		Compression:  compressions[request.Compression],
		BatchTimeout: 2 * time.Millisecond,
		// A broker that restarts is away for longer than this client tries by itself.
		MaxAttempts: 60,
		// A message cannot say where it goes, but it can carry something for the one who decides that.
		Balancer: kafka.BalancerFunc(func(message kafka.Message, _ ...int) int { return message.WriterData.(int) }),
	}
	return &producer{writer: writer, network: network}, nil
}

func (p *producer) Call(request *protocol.Request, _ *protocol.Driver) (any, error) {
	switch request.Op {
	case "send":
		message := kafka.Message{
			Topic: request.Topic, Key: request.Key, Value: request.Value, WriterData: int(request.Partition),
		}
		for _, header := range request.Headers {
			message.Headers = append(message.Headers, kafka.Header{Key: header.Name, Value: header.Value})
		}
		p.waiting = append(p.waiting, message)
		return nil, nil
	case "flush":
		ctx, cancel := limited()
		defer cancel()
		messages := p.waiting
		p.waiting = nil
		return nil, p.writer.WriteMessages(ctx, messages...)
	case "close":
		err := p.writer.Close()
		p.network.CloseIdleConnections()
		return nil, err
	}
	return nil, protocol.Unknown(request)
}
