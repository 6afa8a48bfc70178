// A driver for franz-go.
package main

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"sealog/drivers/protocol"
)

func main() {
	protocol.Serve(protocol.Client{
		Open: map[string]func(*protocol.Request) (protocol.Handle, error){
			"producer": openProducer,
			"consumer": openConsumer,
			"session":  openSession,
		},
		// A write of a fenced producer is told INVALID_PRODUCER_EPOCH, and this client hands that on.
		Fenced: func(err error) bool {
			return errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch)
		},
	})
}

func limited() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), protocol.CallTimeout)
}

// within runs a close that may wait for ever.
func within(close func()) {
	done := make(chan struct{})
	go func() {
		close()
		done <- struct{}{}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), protocol.CloseTimeout)
	defer cancel()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

var compressions = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}
