package tail

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// The parts of the streaming replication protocol and of pgoutput, version 2, that a bell
// needs: which transaction committed, with which rows, and how far the server has come.

// errProtocol matches every message that cannot be read. It ends the session.
var errProtocol = errors.New("the server sent a replication message that cannot be read")

// told is the content of one message of the server.
type told struct {
	kind  kind
	xid   uint32 // of a commit
	rows  []Row  // of a commit
	whole bool   // these are all
	at    uint64 // the server has sent everything before this position
	reply bool   // the server waits for an answer
}

type kind uint8

const (
	passed    kind = iota // nothing to do
	committed             // a transaction with rows of the publication
	alive                 // a keepalive
	described             // the outbox has these columns from here on
)

// decoder reads the messages of one session.
type decoder struct {
	xid       uint32 // of the transaction whose messages arrive
	open      bool   // between Begin and Commit
	streaming bool   // between Stream Start and Stream Stop
	gather    gather
}

// decode reads the body of one CopyData message. It keeps nothing of b.
func (d *decoder) decode(b []byte) (told, error) {
	if len(b) == 0 {
		return told{}, errProtocol
	}
	switch b[0] {
	case 'k': // end of WAL, clock, whether to answer
		if len(b) != 18 {
			return told{}, errProtocol
		}
		return told{kind: alive, at: binary.BigEndian.Uint64(b[1:]), reply: b[17] == 1}, nil
	case 'w': // start, end of WAL, clock, message of the plugin
		if len(b) < 26 {
			return told{}, errProtocol
		}
		t, err := d.message(b[25:])
		t.at = binary.BigEndian.Uint64(b[1:])
		return t, err
	}
	return told{}, fmt.Errorf("%w (type %q)", errProtocol, b[0])
}

// message reads one message of pgoutput.
func (d *decoder) message(m []byte) (told, error) {
	size, ok := sizes(m[0], d.streaming)
	if !ok || len(m) < size {
		return told{}, fmt.Errorf("%w (pgoutput %q of %d bytes)", errProtocol, m[0], len(m))
	}
	switch m[0] {
	case 'B':
		if d.open || d.streaming {
			return told{}, errProtocol
		}
		d.xid, d.open = binary.BigEndian.Uint32(m[17:]), true
		d.gather.begin()
	case 'C':
		if !d.open {
			return told{}, errProtocol
		}
		d.open = false
		return told{kind: committed, xid: d.xid, rows: d.gather.rows, whole: d.gather.whole}, nil
	case 'S':
		if d.streaming {
			return told{}, errProtocol
		}
		d.streaming = true
	case 'E':
		d.streaming = false
	case 'R':
		ours, err := d.gather.relation(m[size-4:]) // behind the id of a streamed transaction
		if err != nil {
			return told{}, fmt.Errorf("%w (a table)", err)
		}
		if ours {
			return told{kind: described}, nil
		}
	case 'I':
		if d.streaming || !d.open {
			break
		}
		if err := d.gather.row(m[1:]); err != nil {
			return told{}, fmt.Errorf("%w (a row)", err)
		}
	case 'c':
		return told{kind: committed, xid: binary.BigEndian.Uint32(m[1:])}, nil
	}
	return told{}, nil
}

// sizes returns the least length of a message of pgoutput, and whether it exists.
func sizes(kind byte, streaming bool) (int, bool) {
	n := 1
	switch kind {
	case 'B': // final position, clock, xid
		return 21, true
	case 'C': // flags, position, end, clock
		return 26, true
	case 'S': // xid, whether it is the first part
		return 6, true
	case 'E':
		return 1, true
	case 'c': // xid, flags, position, end, clock
		return 30, true
	case 'A': // xid, xid of the part
		return 9, true
	case 'O': // position, name
		return 10, true
	case 'I', 'U', 'D', 'T', 'R', 'Y', 'M':
		if streaming {
			n += 4
		}
		return n + 4, true
	}
	return 0, false
}

// status is the message that answers the server. written keeps the session alive; flushed
// moves the slot, and 0 leaves it.
//
// A walsender that has reported a flushed position is a candidate for a synchronous standby,
// for which commits wait and which releases them. So a position is confirmed rarely, and each
// time taken back at once: see session.confirm.
func status(written, flushed uint64, now time.Time) []byte {
	b := make([]byte, 0, 34)
	b = append(b, 'r')
	b = binary.BigEndian.AppendUint64(b, written)
	b = binary.BigEndian.AppendUint64(b, flushed)
	b = binary.BigEndian.AppendUint64(b, flushed)
	b = binary.BigEndian.AppendUint64(b, uint64(now.Sub(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).Microseconds())) // since the server's epoch
	return append(b, 0)
}
