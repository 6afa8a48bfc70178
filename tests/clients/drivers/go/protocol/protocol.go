// Package protocol serves the requests of tests/clients/driver_process.py with a client in Go, one after the other.
package protocol

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"
)

const (
	// CallTimeout is for how long a call may try.
	CallTimeout = 60 * time.Second
	// Heartbeat is the interval of every group member.
	Heartbeat = 200 * time.Millisecond
	// CloseTimeout is for how long a close may try: what is closed may be fenced, or its broker gone.
	CloseTimeout = 5 * time.Second
)

// Request has the fields of every operation. Bytes are base64 in JSON, nil is null.
type Request struct {
	ID     int    `json:"id"`
	Op     string `json:"op"`
	Handle int    `json:"handle"`

	Bootstrap            string  `json:"bootstrap"`
	TransactionalID      *string `json:"transactional_id"`
	Idempotent           bool    `json:"idempotent"`
	Compression          string  `json:"compression"`
	TransactionTimeoutMs int     `json:"transaction_timeout_ms"`
	Isolation            string  `json:"isolation"`
	Group                *string `json:"group"`
	InstanceID           *string `json:"instance_id"`
	GroupProtocol        string  `json:"group_protocol"`
	SessionTimeoutMs     int     `json:"session_timeout_ms"`
	MaxWaitMs            int     `json:"max_wait_ms"`

	Topic         string      `json:"topic"`
	Partition     int32       `json:"partition"`
	Offset        int64       `json:"offset"`
	Value         []byte      `json:"value"`
	Key           []byte      `json:"key"`
	Headers       []Header    `json:"headers"`
	Consumer      int         `json:"consumer"`
	Offsets       []Offset    `json:"offsets"`
	Partitions    []Partition `json:"partitions"`
	FromCommitted bool        `json:"from_committed"`
	TimeoutS      float64     `json:"timeout_s"`
	Commit        bool        `json:"commit"`
}

// ReadCommitted says which isolation level a consumer asks for.
func (r *Request) ReadCommitted() bool { return r.Isolation == "read_committed" }

// SessionTimeout of a group member.
func (r *Request) SessionTimeout() time.Duration {
	return time.Duration(r.SessionTimeoutMs) * time.Millisecond
}

// MaxWait is for how long the broker may hold a fetch.
func (r *Request) MaxWait() time.Duration { return time.Duration(r.MaxWaitMs) * time.Millisecond }

// TransactionTimeout of a producer.
func (r *Request) TransactionTimeout() time.Duration {
	return time.Duration(r.TransactionTimeoutMs) * time.Millisecond
}

// Timeout of a poll.
func (r *Request) Timeout() time.Duration { return time.Duration(r.TimeoutS * float64(time.Second)) }

// At is the partition of a request for one.
func (r *Request) At() Partition { return Partition{r.Topic, r.Partition} }

// Partition is [topic, partition] in JSON.
type Partition struct {
	Topic string
	Index int32
}

// UnmarshalJSON reads [topic, partition].
func (p *Partition) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&p.Topic, &p.Index})
}

// MarshalJSON writes [topic, partition].
func (p Partition) MarshalJSON() ([]byte, error) { return json.Marshal([]any{p.Topic, p.Index}) }

// Offset is [topic, partition, offset] in JSON.
type Offset struct {
	Partition
	Offset int64
}

// UnmarshalJSON reads [topic, partition, offset].
func (o *Offset) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&o.Topic, &o.Index, &o.Offset})
}

// Header is [name, value] in JSON.
type Header struct {
	Name  string
	Value []byte
}

// UnmarshalJSON reads [name, value].
func (h *Header) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&h.Name, &h.Value})
}

// MarshalJSON writes [name, value]; a value that the client gave as nothing is an empty one.
func (h Header) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{h.Name, append([]byte{}, h.Value...)})
}

// Record is what a poll gives.
type Record struct {
	Topic     string   `json:"topic"`
	Partition int32    `json:"partition"`
	Offset    int64    `json:"offset"`
	Key       []byte   `json:"key"`
	Value     []byte   `json:"value"`
	Headers   []Header `json:"headers"`
}

// Handle is a producer or a consumer. Its Call gives the result of an operation, nil if it has none.
type Handle interface {
	Call(request *Request, driver *Driver) (any, error)
}

// Client makes the handles of one client, and knows its errors.
type Client struct {
	Open   map[string]func(request *Request) (Handle, error)
	Fenced func(err error) bool
}

// Driver serves one client.
type Driver struct {
	client  Client
	handles map[int]Handle
	last    int
}

// Handle finds what was opened before.
func (d *Driver) Handle(number int) Handle { return d.handles[number] }

// Unknown is the error for an operation that a handle does not have.
func Unknown(request *Request) error { return fmt.Errorf("no operation %s here", request.Op) }

type failure struct {
	Class   string `json:"class"`
	Message string `json:"message"`
	Fenced  bool   `json:"fenced"`
}

type answer struct {
	ID     int      `json:"id"`
	OK     bool     `json:"ok"`
	Result any      `json:"result"`
	Error  *failure `json:"error,omitempty"`
}

// Serve answers the requests of stdin on stdout until stdin ends.
func Serve(client Client) {
	driver := &Driver{client: client, handles: map[int]Handle{}}
	in := bufio.NewReader(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	for {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			return
		}
		if err != nil {
			panic(err)
		}
		var request Request
		if err := json.Unmarshal(line, &request); err != nil {
			panic(err)
		}
		if err := out.Encode(driver.answer(&request)); err != nil {
			panic(err)
		}
	}
}

func (d *Driver) answer(request *Request) answer {
	result, err := d.serve(request)
	if err == nil {
		return answer{ID: request.ID, OK: true, Result: result}
	}
	fmt.Fprintf(os.Stderr, "%s: %T: %v\n", request.Op, err, err)
	said := failure{Class: fmt.Sprintf("%T", err), Message: err.Error(), Fenced: d.client.Fenced(err)}
	return answer{ID: request.ID, Error: &said}
}

func (d *Driver) serve(request *Request) (any, error) {
	if open := d.client.Open[request.Op]; open != nil {
		handle, err := open(request)
		if err != nil {
			return nil, err
		}
		d.last++
		d.handles[d.last] = handle
		return d.last, nil
	}
	handle := d.handles[request.Handle]
	if handle == nil {
		return nil, fmt.Errorf("no handle %d", request.Handle)
	}
	if request.Op == "close" {
		delete(d.handles, request.Handle)
	}
	return handle.Call(request, d)
}
