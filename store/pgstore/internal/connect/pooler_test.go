package connect

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A server that accepts a connection and then is silent, frozen or cut off, holds up no connection
// to another one.
//
// Promises: S
func TestASilentServerHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, err := pgxpool.ParseConfig("postgres://u@db.example/d?sslmode=disable")
		if err != nil {
			t.Fatal(err)
		}
		silent := true
		cfg.ConnConfig.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"192.0.2.1"}, nil }
		cfg.ConnConfig.DialFunc = func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			t.Cleanup(func() { _ = theirs.Close() })
			go serve(theirs, silent)
			return ours, nil
		}
		DetectPooler(cfg)
		first := make(chan error, 1)
		go func() { first <- cfg.BeforeConnect(context.Background(), cfg.ConnConfig.Copy()) }()
		time.Sleep(time.Second)
		silent = false
		if err := cfg.BeforeConnect(context.Background(), cfg.ConnConfig.Copy()); err != nil {
			t.Errorf("the second connection: %v", err)
		}
		if err := <-first; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the first connection: %v, want a deadline", err)
		}
	})
}

// serve starts a session and answers its questions with the process id 7, or never.
func serve(conn net.Conn, silent bool) {
	b := pgproto3.NewBackend(conn, conn)
	if _, err := b.ReceiveStartupMessage(); err != nil {
		return
	}
	key := make([]byte, 4)
	b.Send(&pgproto3.AuthenticationOk{})
	b.Send(&pgproto3.BackendKeyData{ProcessID: 7, SecretKey: key})
	b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	if b.Flush() != nil {
		return
	}
	for {
		msg, err := b.Receive()
		if err != nil {
			return
		}
		switch msg.(type) {
		case *pgproto3.Parse:
			b.Send(&pgproto3.ParseComplete{})
		case *pgproto3.Bind:
			b.Send(&pgproto3.BindComplete{})
		case *pgproto3.Describe:
			b.Send(&pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{{Name: []byte("pid"), DataTypeOID: 23, DataTypeSize: 4, Format: 1}}})
		case *pgproto3.Execute:
			b.Send(&pgproto3.DataRow{Values: [][]byte{binary.BigEndian.AppendUint32(nil, 7)}})
			b.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")})
		case *pgproto3.Sync:
			b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
			if !silent && b.Flush() != nil {
				return
			}
		}
	}
}
