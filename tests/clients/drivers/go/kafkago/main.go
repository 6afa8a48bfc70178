// A driver for segmentio's kafka-go.
package main

import (
	"context"
	"time"

	"github.com/segmentio/kafka-go"

	"sealog/drivers/protocol"
)

func main() {
	protocol.Serve(protocol.Client{
		Open: map[string]func(*protocol.Request) (protocol.Handle, error){
			"producer": openProducer,
			"consumer": openConsumer,
		},
		Fenced: func(error) bool { return false },
	})
}

func limited() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), protocol.CallTimeout)
}

// transport is one per handle: the shared one takes seconds to notice that there is a new topic.
func transport() *kafka.Transport { return &kafka.Transport{MetadataTTL: 200 * time.Millisecond} }

var compressions = map[string]kafka.Compression{
	"none":   0,
	"gzip":   kafka.Gzip,
	"snappy": kafka.Snappy,
	"lz4":    kafka.Lz4,
	"zstd":   kafka.Zstd,
}
