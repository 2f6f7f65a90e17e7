package pgstore_test

import (
	"strings"
	"testing"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/pgstore"
)

func TestParseConfig(t *testing.T) {
	for _, conn := range []string{"postgres://u:p@h:1/d", "postgres://u:p@h:1/d?sslmode=disable", "host=h port=1 user=u dbname=d"} {
		cfg, err := pgstore.ParseConfig(conn)
		if err != nil {
			t.Fatalf("%s: %v", conn, err)
		}
		if cfg.ConnConfig.Host != "h" || cfg.ConnConfig.Database != "d" || cfg.ConnConfig.RuntimeParams["application_name"] != "postrider" {
			t.Errorf("%s gave host %q, database %q, %v", conn, cfg.ConnConfig.Host, cfg.ConnConfig.Database, cfg.ConnConfig.RuntimeParams)
		}
	}
}

func TestParseConfigKeepsSecrets(t *testing.T) {
	for _, conn := range []string{"postgres://relay:S3cret%zz@db:5432/x", "postgres://u:S3cret@h:port/x", "password=S3cret port=x"} {
		_, err := pgstore.ParseConfig(conn)
		wantIs(t, err, store.ErrUnusable)
		if strings.Contains(err.Error(), "S3cret") {
			t.Errorf("the error repeats the password: %v", err)
		}
	}
}
