package tail

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

const (
	// beat is the pause between two looks at the server and at our own load.
	beat = time.Second
	// answerWithin is how long the server may take to answer a look. Without an answer
	// the log is closed: nobody knows what the slot holds back.
	answerWithin = 5 * time.Second
	// startWithin bounds how long a session takes to start; the server waits for open
	// transactions for at most lock_timeout.
	startWithin = 15 * time.Second
	// A position is confirmed when this much was read since the last time, or after that long.
	confirmBytes = 16 << 20
	confirmAfter = 10 * time.Second
	// bodyMost is the longest message that is read: more than a row with the largest payload.
	bodyMost = 20 << 20
)

// session is one temporary slot, and the connection to which it belongs.
type session struct {
	bell *Bell
	slot string
	conn net.Conn
	wire *pgproto3.Frontend
	read decoder

	at        uint64 // the server has sent everything before
	confirmed uint64
	when      time.Time // of the last confirmation
	messages  int       // since the last beat

	verdict atomic.Pointer[OffError]
	about   []string     // of the server, nil: unknown
	turning sync.Mutex   // held while rows begin or end to be passed on
	ahead   atomic.Bool  // rows are passed on
	shapes  atomic.Int64 // how often the outbox was described
	safe    atomic.Bool  // nobody waits for standbys that we could be taken for
}

// follow reads the log until it must not or cannot, and returns why.
func (b *Bell) follow(ctx context.Context) *OffError {
	starting, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	c, err := b.check(starting, "")
	if err != nil {
		return refused("check the server", err)
	}
	s := &session{bell: b, slot: b.slotName()}
	if b.follows.Told != nil {
		s.read.gather.schema = b.Schema
	}
	if err := s.start(starting); err != nil {
		return refused("read the log", err)
	}
	defer s.close()
	s.early(c.sync == "")
	defer s.early(false)
	return refused("read the log", s.run(ctx))
}

// connect opens a replication connection with the pool's settings.
func (b *Bell) connect(ctx context.Context) (*pgconn.PgConn, error) {
	pool := b.Pool.Config()
	cc := pool.ConnConfig
	if pool.BeforeConnect != nil {
		if err := pool.BeforeConnect(ctx, cc); err != nil {
			return nil, err
		}
	}
	cc.ValidateConnect = primary // the pool may have found its primary behind another host
	for name, value := range map[string]string{
		"replication": "database", "application_name": Application, "lock_timeout": "1s", "wal_sender_timeout": "5s",
		"statement_timeout": "0", "idle_session_timeout": "0",
	} {
		cc.RuntimeParams[name] = value
	}
	return pgconn.ConnectConfig(ctx, &cc.Config)
}

// primary refuses a standby, on which a slot would tell commits late and count for nothing on the
// server that was checked. The driver then tries the next host.
func primary(ctx context.Context, conn *pgconn.PgConn) error {
	row, err := ask(ctx, conn, `SELECT pg_is_in_recovery()`)
	if err == nil && (len(row) != 1 || row[0] != "f") {
		err = errors.New("the server is a standby")
	}
	return err
}

func (s *session) start(ctx context.Context) error {
	conn, err := s.bell.connect(ctx)
	if err != nil {
		return err
	}
	if s.bell.follows.Told != nil {
		s.about, _ = ask(ctx, conn, s.bell.follows.AboutSQL) // without an answer the log is a bell
	}
	create := fmt.Sprintf(`CREATE_REPLICATION_SLOT %s TEMPORARY LOGICAL pgoutput (SNAPSHOT 'nothing')`, s.slot)
	if _, err := conn.Exec(ctx, create).ReadAll(); err != nil {
		_ = conn.Close(context.WithoutCancel(ctx)) // the error is that of the slot
		return err
	}
	hijacked, err := conn.Hijack()
	if err != nil {
		return err
	}
	s.conn, s.wire, s.when = hijacked.Conn, hijacked.Frontend, time.Now()
	s.wire.SetMaxBodyLen(bodyMost)
	if err := s.stream(ctx); err != nil {
		s.close()
		return err
	}
	return nil
}

// ask returns the texts of a row.
func ask(ctx context.Context, conn *pgconn.PgConn, sql string) ([]string, error) {
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil || len(results) != 1 || len(results[0].Rows) != 1 {
		return nil, err
	}
	var row []string
	for _, v := range results[0].Rows[0] {
		row = append(row, string(v))
	}
	return row, nil
}

// stream begins to receive.
func (s *session) stream(ctx context.Context) error {
	if until, ok := ctx.Deadline(); ok {
		if err := s.conn.SetDeadline(until); err != nil {
			return err
		}
	}
	s.wire.SendQuery(&pgproto3.Query{String: fmt.Sprintf(
		`START_REPLICATION SLOT %s LOGICAL 0/0 (proto_version '2', publication_names '%s', streaming 'on', binary 'true')`,
		s.slot, quoted(Publication(s.bell.Schema)))})
	if err := s.wire.Flush(); err != nil {
		return err
	}
	for {
		switch m, err := s.wire.Receive(); m := m.(type) {
		case *pgproto3.CopyBothResponse:
			return s.conn.SetDeadline(time.Time{})
		case *pgproto3.ErrorResponse:
			return pgconn.ErrorResponseToPgError(m)
		default:
			if err != nil {
				return err
			}
		}
	}
}

// quoted is an identifier in a list of names in a text literal. Ours has no quote.
func quoted(name string) string { return `"` + name + `"` }

// close ends the connection, and with it the slot.
func (s *session) close() {
	_ = s.conn.SetDeadline(time.Now().Add(time.Second)) // a broken connection is closed below
	s.wire.Send(&pgproto3.Terminate{})
	_ = s.wire.Flush() // the server ends the slot with the connection anyway
	_ = s.conn.Close()
}

// run receives until ctx ends, the connection is lost or the log must be closed.
func (s *session) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wake := func() { _ = s.conn.SetReadDeadline(time.Unix(1, 0)) }
	defer context.AfterFunc(ctx, wake)()
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		s.watch(ctx, wake)
	}()
	defer func() { cancel(); <-watching }()
	s.bell.opened()
	beatAt := time.Now()
	for {
		if err := s.conn.SetReadDeadline(beatAt.Add(beat)); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if reason := s.verdict.Load(); reason != nil {
			return reason
		}
		if err := s.confirm(); err != nil {
			return err
		}
		if err := s.receive(ctx); err != nil {
			return err
		}
		if now := time.Now(); now.Sub(beatAt) >= beat {
			if rate := float64(s.messages) / now.Sub(beatAt).Seconds(); rate > s.bell.limits.busy {
				return because("", "busy: %.0f log messages a second, polling costs less", rate)
			}
			if s.bell.deaf() {
				return context.Canceled
			}
			beatAt, s.messages = now, 0
			if err := s.answer(0); err != nil {
				return err
			}
		}
	}
}

// receive reads messages until the read deadline or for a beat.
func (s *session) receive(ctx context.Context) error {
	for until := time.Now().Add(beat); ; {
		m, err := s.wire.Receive()
		switch m := m.(type) {
		case *pgproto3.CopyData:
			if err := s.hear(m.Data); err != nil {
				return err
			}
			if s.messages&0xff == 0 && !time.Now().Before(until) {
				return nil
			}
		case *pgproto3.ErrorResponse:
			return pgconn.ErrorResponseToPgError(m)
		case *pgproto3.CopyDone:
			return errors.New("the server ended the stream")
		case nil:
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return ctx.Err()
			}
			return err
		}
	}
}

// hear acts on one message.
func (s *session) hear(data []byte) error {
	t, err := s.read.decode(data)
	if err != nil {
		return err
	}
	s.messages++
	s.at = max(s.at, t.at)
	switch t.kind {
	case committed:
		s.tells(&t)
		s.bell.ring(t.xid)
	case described:
		s.shaped()
	case passed, alive: // only the position moves
	}
	if t.reply {
		return s.answer(0)
	}
	return nil
}

// answer tells the server that we live; flushed moves the slot.
func (s *session) answer(flushed uint64) error {
	s.wire.Send(&pgproto3.CopyData{Data: status(s.at, flushed, time.Now())})
	if err := s.conn.SetWriteDeadline(time.Now().Add(answerWithin)); err != nil {
		return err
	}
	return s.wire.Flush()
}

// confirm moves the slot, once the server has said that nobody could take us for a synchronous
// standby. The next message withdraws the position: without one we are no candidate.
func (s *session) confirm() error {
	now := time.Now()
	if s.at <= s.confirmed || s.at-s.confirmed < confirmBytes && now.Sub(s.when) < confirmAfter || !s.safe.Swap(false) {
		return nil
	}
	s.confirmed, s.when = s.at, now
	s.wire.Send(&pgproto3.CopyData{Data: status(s.at, s.at, now)})
	return s.answer(0)
}

// watch looks at the server every beat, through the pool, and wakes the reader when there is
// something to do.
func (s *session) watch(ctx context.Context, wake func()) {
	ticks := time.NewTicker(beat)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		limited, cancel := context.WithTimeout(ctx, answerWithin)
		seen := s.shapes.Load()
		slow := time.AfterFunc(beat, func() { s.early(false) }) // nobody knows whether commits wait
		c, err := s.bell.check(limited, s.slot)
		slow.Stop()
		cancel()
		switch {
		case err == nil:
			if c.sync != "" || seen == s.shapes.Load() {
				s.early(c.sync == "")
			}
			s.safe.Store(true)
		case ctx.Err() != nil:
			return
		default:
			s.verdict.Store(refused("check the server", err))
		}
		wake()
		if err != nil {
			return
		}
	}
}
