package pgstore_test

import (
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store/pgstore"
)

// asPooler forwards connections and, as a pooler does, makes up the process
// that a client is promised.
func asPooler(t *testing.T, server string) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go forward(client, server)
		}
	}()
	return l.Addr().String()
}

func forward(client net.Conn, server string) {
	defer client.Close()
	up, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer up.Close()
	go func() { _, _ = io.Copy(up, client); _ = up.Close() }()
	head := make([]byte, 5)
	for kind := byte(0); kind != 'K'; {
		if _, err := io.ReadFull(up, head); err != nil {
			return
		}
		kind = head[0]
		body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
		if _, err := io.ReadFull(up, body); err != nil {
			return
		}
		if kind == 'K' { // BackendKeyData: process, secret
			binary.BigEndian.PutUint32(body, binary.BigEndian.Uint32(body)+1)
		}
		if _, err := client.Write(append(head, body...)); err != nil {
			return
		}
	}
	_, _ = io.Copy(client, up)
}

func TestAPoolerIsNoticed(t *testing.T) {
	pg := testserver.SharedPostgres(t, "18")
	direct, err := url.Parse(pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	behind := *direct
	behind.Host = asPooler(t, direct.Host)
	for _, tc := range []struct {
		name, url string
		want      pgx.QueryExecMode
	}{
		{"directly", direct.String(), pgx.QueryExecModeCacheStatement},
		{"behind a pooler", behind.String(), pgx.QueryExecModeExec},
		{"as asked for", behind.String() + "&default_query_exec_mode=cache_statement", pgx.QueryExecModeCacheStatement},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg, err := pgstore.ParseConfig(tc.url)
			if err != nil {
				t.Fatal(err)
			}
			pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			for range 2 {
				conn, err := pool.Acquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Release()
				if got := conn.Conn().Config().DefaultQueryExecMode; got != tc.want {
					t.Errorf("mode %v, want %v", got, tc.want)
				}
			}
		})
	}
}
