package mysqlstore

import (
	"context"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/testserver"
)

func TestOpenRefusesWhatItDoesNotKnow(t *testing.T) {
	for url, want := range map[string]string{
		"postgres://h/d":                "use mysql or mariadb",
		"mysql://u:secret@h":            "names no database",
		"mysql://u:secret@h/a/b":        "names no database",
		"mysql://u:secret@h/d?tls=yes":  "tls must be",
		"mysql://u:secret@h/d?sslmode=": "use tls or socket",
		"mysql://u:se%cret@h/d":         "cannot be parsed",
	} {
		_, err := OpenDB(url, nil)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "cret@") {
			t.Errorf("%s: error %v, want %q and no password", url, err, want)
		}
	}
}

func TestOpenReadsTheURL(t *testing.T) {
	cfg, _, err := config("mariadb://app:p%40ss@db.example/shop?tls=true")
	if err != nil {
		t.Fatal(err)
	}
	if cfg.User != "app" || cfg.Passwd != "p@ss" || cfg.Addr != "db.example:3306" || cfg.DBName != "shop" || cfg.TLSConfig != "true" {
		t.Errorf("%+v", cfg)
	}
	if cfg, _, err = config("mysql://app@/shop?socket=/run/m.sock"); err != nil || cfg.Net != "unix" || cfg.Addr != "/run/m.sock" {
		t.Errorf("%+v, error %v", cfg, err)
	}
}

func TestAPasswordIsAskedAtEachConnection(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		u := server.Database(t)
		if _, err := server.Query(t.Context(), "", "create user if not exists asked@'%' identified by 'one'; alter user asked@'%' identified by 'one'"); err != nil {
			t.Fatal(err)
		}
		if _, err := server.Query(t.Context(), "", "grant all on "+u[strings.LastIndex(u, "/")+1:]+".* to asked@'%'"); err != nil {
			t.Fatal(err)
		}
		word := "one"
		db, err := OpenDB(strings.Replace(u, "root@", "asked@", 1), func(context.Context) (string, error) { return word, nil })
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		db.SetMaxIdleConns(-1) // each use connects
		if err := db.PingContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := server.Query(t.Context(), "", "alter user asked@'%' identified by 'two'"); err != nil {
			t.Fatal(err)
		}
		if err := db.PingContext(t.Context()); err == nil {
			t.Error("the old password was taken")
		}
		word = "two"
		if err := db.PingContext(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
