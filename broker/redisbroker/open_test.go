package redisbroker_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/redisbroker"
	"github.com/postrider/postrider/internal/testserver"
)

// TestURLs: an error names what is wrong with a URL without repeating the URL.
func TestURLs(t *testing.T) {
	for url, want := range map[string]string{
		"amqp://u:hunter2@h":                      "must begin with redis:// or rediss://",
		"redis://u:hunter2@h/orders":              "must be a database number",
		"redis://u:hunter2@h?maxlen=many":         "maxlen must be",
		"redis://u:hunter2@h?maxlen=5&max-age=1h": "not by both",
		"redis://u:hunter2@h?max-age=5":           "max-age must be a duration",
		"redis://u:hunter2@h?partitions=0":        "partitions must be",
		"redis://u:hunter2@h?create=yes":          "create must be on or off",
		"redis://u:hunter2@h?synced=on":           "synced must be true or false",
		"redis://u:hunter2@h?durable=yes":         "durable must be",
		"redis://u:hunter2@h?maxlength=5":         `"maxlength" is unknown`,
		"redis://hunter2@h":                       "the user has no password",
	} {
		_, err := redisbroker.Open(url, nil)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %q", url, err, want)
		}
	}
}

// TestProbe: the start checks the server's configuration.
func TestProbe(t *testing.T) {
	t.Parallel()
	r := testserver.StartRedis(t, testserver.Redis7)
	host, port, _ := net.SplitHostPort(r.Addr)
	ask(t, r.Addr, "SET", "text", "x")
	var advice string
	probe := func(addr, params, want string) {
		t.Helper()
		sink := open(t, "redis://"+addr+params)
		all, _ := sink.Advise(t.Context(), []string{"orders"})
		advice = fmt.Sprint(all)
		if errs := sink.Deliver(t.Context(), broker.Batch{Messages: numbered("made", "k", 1, 1)}); want != "" && errs == nil {
			t.Errorf("%s: messages are taken", params)
		}
		missing, err := sink.Probe(t.Context(), []string{"orders", "text"})
		switch {
		case want != "":
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", params, err, want)
			}
		case err != nil:
			t.Errorf("%s: %v", params, err)
		case (missing[0] != nil) != strings.Contains(params, "create=off"), missing[1] == nil || !strings.Contains(missing[1].Error(), "is a string, not a stream"):
			t.Errorf("%s: missing %v", params, missing)
		}
	}
	probe(r.Addr, "", "")
	if !strings.Contains(advice, "appendfsync is no") {
		t.Errorf("the advice is %q", advice)
	}
	probe(r.Addr, "?create=off", "")
	probe(r.Addr, "?durable=everysec", "")
	probe(r.Addr, "?durable=always", "CONFIG SET appendfsync always")
	probe(r.Addr, "?synced=true", "synced=true would wait")
	ask(t, r.Addr, "CONFIG", "SET", "appendfsync", "always")
	probe(r.Addr, "?durable=always&synced=true", "")
	ask(t, r.Addr, "CONFIG", "SET", "appendonly", "no")
	probe(r.Addr, "?durable=everysec", "CONFIG SET appendonly yes")
	ask(t, r.Addr, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	probe(r.Addr, "", "")
	ask(t, r.Addr, "CONFIG", "SET", "maxmemory", "1gb")
	probe(r.Addr, "", "set maxmemory-policy noeviction")
	replica := testserver.StartRedis(t, testserver.Redis7, testserver.WithConfig("replicaof "+host+" "+port))
	probe(replica.Addr, "", "is a replica")
	probe("127.0.0.1:1", "", "reach redis")
}

// TestProbeRefused: a rejected login and missing rights are reported at the
// start, and no entry is added.
func TestProbeRefused(t *testing.T) {
	t.Parallel()
	addr, topic := testserver.SharedRedis(t, testserver.Redis7).Addr, "asked"+rand.Text()
	for _, c := range []struct{ rules, url, want string }{
		{"~* +@all", "u:secret@", ""},
		{"~" + topic + " +multi +exec +xadd +info +ping +type", "u:secret@", ""},
		{"~* +@all", "u:wrong@", "WRONGPASS"},
		{"~* +@all", "u@", "cannot be read"}, // its password is in a file that is removed
		{"~* +@all -multi", "u:secret@", "+multi and +exec"},
		{"~* +@all -xadd", "u:secret@", "NOPERM at " + topic},
		{"~other +@all", "u:secret@", "NOPERM at " + topic},
	} {
		user := rand.Text()
		ask(t, addr, append([]string{"ACL", "SETUSER", user, "on", ">secret"}, strings.Fields(c.rules)...)...)
		url := "redis://" + user + c.url[1:] + addr
		file := filepath.Join(t.TempDir(), "password")
		if c.want == "cannot be read" {
			url += "?password-file=" + file
		}
		if err := os.WriteFile(file, []byte("secret"), 0o600); err != nil {
			t.Fatal(err)
		}
		sink := open(t, url)
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		missing, err := sink.Probe(t.Context(), []string{topic})
		all := errors.Join(append(missing, err)...)
		switch {
		case c.want == "":
			if all != nil {
				t.Errorf("%s: %v", c.rules, all)
			}
		case all == nil || !strings.Contains(all.Error(), c.want) || strings.Contains(all.Error(), "wrong"):
			t.Errorf("%s: %v, want %q", c.rules, all, c.want)
		case errors.Is(err, broker.ErrRefused) == strings.Contains(c.want, topic):
			t.Errorf("%s: %v is not what refuses us at all", c.rules, err)
		}
	}
	if ask(t, addr, "EXISTS", topic) != int64(0) {
		t.Error("the look has made the stream")
	}
}

// TestTLSAndRotation: over TLS, with a password that changes under way.
func TestTLSAndRotation(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(os.TempDir(), "redis-tls-"+rand.Text()) // the server's user cannot read t.TempDir()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ca, err := testserver.NewCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := ca.Issue("redis", "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{"cert": cert, "key": key, "password": []byte("one\n")}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r := testserver.StartRedis(t, testserver.Redis7, testserver.WithConfig("requirepass one",
		"tls-cert-file "+dir+"/cert", "tls-key-file "+dir+"/key", "tls-ca-cert-file "+ca.File, "tls-auth-clients no"))
	sink := open(t, "rediss://"+r.TLSAddr+"?tls-ca="+ca.File+"&password-file="+dir+"/password")
	if errs := sink.Deliver(t.Context(), broker.Batch{Messages: numbered("orders", "k", 1, 3)}); errs != nil {
		t.Fatal(errs)
	}
	untrusted := open(t, "rediss://:one@"+r.TLSAddr)
	if errs := untrusted.Deliver(t.Context(), broker.Batch{Messages: numbered("orders", "k", 4, 4)}); errs == nil {
		t.Error("a certificate of an unknown authority is trusted")
	}
	if err := os.WriteFile(filepath.Join(dir, "password"), []byte("two\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := r.CLI(t.Context(), testserver.Redis7, "-a", "one", "--no-auth-warning", "CONFIG", "SET", "requirepass", "two"); err != nil {
		t.Fatal(out, err)
	}
	if _, err := r.CLI(t.Context(), testserver.Redis7, "-a", "two", "--no-auth-warning", "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"); err != nil {
		t.Fatal(err)
	}
	until(t, "the new password is used", func() bool {
		return sink.Deliver(t.Context(), broker.Batch{Messages: numbered("orders", "k", 4, 5)}) == nil
	})
}
