// A driver for sarama.
package main

import (
	"errors"
	"log"
	"os"
	"time"

	"github.com/IBM/sarama"

	"sealog/drivers/protocol"
)

func main() {
	sarama.Logger = log.New(os.Stderr, "", log.Lmicroseconds)
	protocol.Serve(protocol.Client{
		Open: map[string]func(*protocol.Request) (protocol.Handle, error){
			"producer": openProducer,
			"consumer": openConsumer,
		},
		// A write of a fenced producer is told INVALID_PRODUCER_EPOCH, and this client hands that on.
		Fenced: func(err error) bool {
			return errors.Is(err, sarama.ErrProducerFenced) || errors.Is(err, sarama.ErrInvalidProducerEpoch)
		},
	})
}

// newest is the configuration of the newest protocol that this client knows; by itself it keeps to an old one.
func newest() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	return config
}

// within runs a close that may wait for ever.
func within(close func()) {
	done := make(chan struct{})
	go func() {
		close()
		done <- struct{}{}
	}()
	select {
	case <-done:
	case <-time.After(protocol.CloseTimeout):
	}
}

var compressions = map[string]sarama.CompressionCodec{
	"none":   sarama.CompressionNone,
	"gzip":   sarama.CompressionGZIP,
	"snappy": sarama.CompressionSnappy,
	"lz4":    sarama.CompressionLZ4,
	"zstd":   sarama.CompressionZSTD,
}
