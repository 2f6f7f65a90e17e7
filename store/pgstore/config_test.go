package pgstore_test

import (
	"strings"
	"testing"
	"time"

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

// Promises: C
func TestParseConfigKeepsSecrets(t *testing.T) {
	const odd = "percent-encoded"
	for conn, want := range map[string]string{
		"postgres://relay:S3cret%zz@db:5432/x":            odd,
		"postgres://u:S3cret@h:port/x":                    "user, password, host, port or database",
		"password=S3cret port=x":                          "cannot be read",
		"postgres://u:S3cret@x@h/db":                      "an @ that is not",
		"postgres://u:p@S3cret@h/db":                      "an @ that is not",
		"postgres://u:p/S3cret@h/db":                      "an @ that is not",
		"postgres://u:5432/S3cret@h/db":                   "an @ that is not",
		"postgres://h/db?sslmode=require&S3cret@h/db":     "an @ that is not",
		"postgres://u:S3cret@h/db?sslmode=maybe":          "parameter sslmode of",
		"postgres://u:S3cret@h/db?pool_max_conns=x":       "parameter pool_max_conns of",
		"postgres://u:S3cret@h/db?sslrootcert=/nowhere.x": "open /nowhere.x: no such file",
	} {
		_, err := pgstore.ParseConfig(conn)
		wantIs(t, err, store.ErrUnusable)
		if strings.Contains(err.Error(), "S3cret") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error is %v", conn, err)
		}
	}
	for conn, password := range map[string]string{
		"postgres://u:a%40b%2Fc@h/db":                            "a@b/c",
		"postgres://h/db?user=me@server&password=a@b":            "a@b",
		"postgres://u:a?b@h/db":                                  "a?b",
		"host=h user=u password=a@b://c dbname=db":               "a@b://c",
		"postgres://u:p@h1:1,h2:2/db?sslmode=disable":            "p",
		"postgres://u:p@h/db?pool-max-conns=3&connect-timeout=2": "p",
	} {
		cfg, err := pgstore.ParseConfig(conn)
		if err != nil || cfg.ConnConfig.Password != password {
			t.Errorf("%s is refused: %v", conn, err)
		} else if strings.Contains(conn, "-") && (cfg.MaxConns != 3 || cfg.ConnConfig.ConnectTimeout != 2*time.Second) {
			t.Errorf("%s: the parameters with dashes count for nothing", conn)
		}
	}
}
