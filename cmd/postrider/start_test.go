package main

import (
	"crypto/rand"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/internal/testserver"
)

// fileOutbox is an outbox in a file with one message for each topic.
func fileOutbox(t *testing.T, topics ...string) (store string) {
	t.Helper()
	store = "sqlite:" + filepath.Join(t.TempDir(), "o.db")
	mustCLI(t, "", "migrate", "--store", store)
	for _, topic := range topics {
		mustCLI(t, `{"topic":"`+topic+`","key":"k","type":"t","payload":{}}`+"\n", "enqueue", "--store", store)
	}
	return store
}

// TestRefusedAtStart: a relay that could only wait does not begin, and says what
// to do; one destination that is missing does not keep it from the others.
func TestRefusedAtStart(t *testing.T) {
	server := testserver.SharedNATS(t).URL
	here, gone := "here"+rand.Text(), "gone"+rand.Text()
	store := fileOutbox(t, gone)
	p := launchRelay(t, store, server)
	if code := p.ends(3 * time.Minute); code != exit.Usage || !strings.Contains(p.said.String(), "nats stream add --subjects") {
		t.Errorf("no stream for the only topic: exit code %d\n%s", code, p.said)
	}
	nc, err := nats.Connect(server)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: here, Subjects: []string{here}}); err != nil {
		t.Fatal(err)
	}
	mustCLI(t, `{"topic":"`+here+`","key":"h","type":"t","payload":{}}`+"\n", "enqueue", "--store", store)
	p = launchRelay(t, store, server)
	until(t, "the other topic's message arrives", p, func() bool {
		s, err := js.Stream(t.Context(), here)
		return err == nil && s.CachedInfo().State.Msgs == 1
	})
	if p.said.count("destination unusable") != 1 || p.said.count(gone) == 0 {
		t.Errorf("what is missing is not said:\n%s", p.said)
	}
	p.stop()
	// What a rule names is looked for before there is a message for it.
	rules := filepath.Join(t.TempDir(), "p.yml")
	if err := os.WriteFile(rules, []byte("routes:\n  - {match: {topic: a}, topic: fixed"+gone+"}\n  - {match: {topic: b}, topic: \"{type}\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p = launchRelay(t, fileOutbox(t), server, "-c", rules)
	if code := p.ends(3 * time.Minute); code != exit.Usage || !strings.Contains(p.said.String(), "nats stream add") || p.said.count("fixed"+gone) == 0 {
		t.Errorf("no stream for a rule's topic: exit code %d\n%s", code, p.said)
	}
	p = launchRelay(t, store, "nats://127.0.0.1:1") // nobody there is waited for
	until(t, "the relay says that it waits", p, func() bool { return p.said.count("broker unreachable") > 0 })
	p.stop()
}

// TestEachBrokerRefusesAtStart: what can never work ends the relay before it has
// read a message, and the last line says what to change.
func TestEachBrokerRefusesAtStart(t *testing.T) {
	kafka, rabbit := "kafka://"+testserver.SharedKafka(t).Addr, testserver.SharedRabbitMQ(t, testserver.RabbitMQVersions()[0]).URL
	gone := "gone" + rand.Text()
	store := fileOutbox(t, gone)
	for _, c := range []struct{ broker, fix string }{
		{kafka, "make the topic " + gone},
		{kafka + "?aks=all", `parameter "aks" is unknown: use `},
		{rabbit, `queue "` + gone + `" does not exist; declare it`},
		{rabbit + "?exchange=" + gone, `exchange "` + gone + `" does not exist; declare it`},
		{strings.Replace(rabbit, "guest:guest", "guest:hunter2", 1), "check the user's name and password"},
		{rabbit + "nowhere", `virtual host "nowhere"`},
		{rabbit + "?exchnge=e", `parameter "exchnge" is unknown: use `},
		{"redis://u:hunter2@" + testserver.SharedRedis(t, testserver.Redis7).Addr, "set user and password in the broker's URL"},
		{"redis://127.0.0.1:1?maxlen=x", "maxlen must be a number above 0"},
		{"redis://127.0.0.1:1?mxlen=3", `parameter "mxlen" is unknown: use `},
		{"nats://127.0.0.1:1?x=1", `parameter "x" is unknown: use `},
		{"https://127.0.0.1:1/hook", "has no secret"},
		{"webhook://127.0.0.1:1", `scheme "webhook" is unknown: use `},
	} {
		p := launchRelay(t, store, c.broker)
		if code := p.ends(3 * time.Minute); code != exit.Usage || !strings.Contains(p.said.String(), c.fix) {
			t.Errorf("%s: exit code %d without %q:\n%s", c.broker, code, c.fix, p.said)
		}
	}
}

// TestNoSecretIsPrinted: the program never prints a password of a URL or a file,
// whatever goes wrong.
//
// Promises: C
func TestNoSecretIsPrinted(t *testing.T) {
	const canary = "ca/na+ry hunter2"
	dir := t.TempDir()
	ca := newCA(t, dir)
	kafka := testserver.StartKafka(t, testserver.WithSASL(ca, map[string]string{"right": canary, "wrong": "another"}))
	file := filepath.Join(dir, "password")
	if err := os.WriteFile(file, []byte(canary+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	store := fileOutbox(t, "orders")
	var printed strings.Builder
	say := func(what, text string) {
		printed.WriteString(text)
		for _, form := range []string{
			canary, "hunter2", url.QueryEscape(canary), url.PathEscape(canary), url.UserPassword("", canary).String()[1:],
			base64.StdEncoding.EncodeToString([]byte(canary)), hookSecret[len("whsec_"):],
		} {
			if strings.Contains(text, form) {
				t.Errorf("%s: the password is printed:\n%s", what, text)
			}
		}
	}
	escaped, tls := url.QueryEscape(canary), "tls-ca="+ca.File
	escaped = strings.ReplaceAll(escaped, "+", "%20")
	secure := func(user, params string) string { return "kafka://" + user + "@" + kafka.Secure + "/?" + tls + params }
	refused := []string{
		secure("wrong:"+escaped, ""), secure("wrong", "&password-file="+file), secure("wrong:"+escaped, "&sasl=scram-sha-256"),
	}
	for _, broker := range refused {
		p := launch(t, "relay", "--listen", "", "--log-level", "debug", "--store", store, "--broker", broker)
		if code := p.ends(3 * time.Minute); code != exit.Usage || p.said.count("check user, password") == 0 {
			t.Errorf("%s: exit code %d\n%s", strings.ReplaceAll(broker, escaped, "..."), code, p.said)
		}
		say("a wrong password", p.said.String())
	}
	waiting := []string{
		secure("right:"+escaped, ""), secure("right", "&password-file="+file), // let in, and may not write
		"kafka://u:" + escaped + "@127.0.0.1:1", "nats://u:" + escaped + "@127.0.0.1:1", "nats://" + escaped + "@127.0.0.1:1",
		"nats://127.0.0.1:1?token-file=" + file, "amqp://u:" + escaped + "@127.0.0.1:1/", "redis://u:" + escaped + "@127.0.0.1:1",
	}
	hooks, unfit := secretHooks(t, escaped, file)
	for _, broker := range unfit {
		p := launch(t, "relay", "--listen", "", "--log-level", "debug", "--store", store, "--broker", broker)
		if code := p.ends(3 * time.Minute); code != exit.Usage || p.said.count("write whsec_") == 0 {
			t.Errorf("exit code %d\n%s", code, p.said)
		}
		say("a secret that is none", p.said.String())
	}
	for _, broker := range append(waiting, hooks...) {
		p := launch(t, "relay", "--listen", "127.0.0.1:0", "--log-level", "debug", "--store", store, "--broker", broker)
		var metrics string
		ended := func() bool {
			select {
			case <-p.done:
				return true
			default:
				return false
			}
		}
		until(t, "the relay says what is wrong", p, func() bool {
			metrics = p.metrics()
			return ended() || metrics != "" && (p.said.count("broker unreachable")+p.said.count("database unreachable") > 0 || strings.HasPrefix(broker, "redis:"))
		})
		say("metrics", metrics)
		for _, args := range [][]string{{"status", "-o", "json"}, {"doctor", "--all", "--timeout", "2s", "-o", "json"}, {"check", "--newest", "5"}} {
			got := cli(t, nil, "", append(args, "--store", store, "--broker", broker, "--log-level", "debug")...)
			say(strings.Join(args, " "), got.out+got.err)
		}
		if !ended() {
			p.stop()
		}
		say("the log", p.said.String())
	}
	if !strings.Contains(printed.String(), "broker unreachable") || !strings.Contains(printed.String(), "HTTP_401") {
		t.Error("nothing was printed that could have held it")
	}
}

// secretHooks are webhooks that the relay waits for, and such that it refuses, with
// a password in all places where one may stand: user, path, parameter, secret,
// authorization. The endpoint answers with all that it was told.
func secretHooks(t *testing.T, escaped, password string) (waiting, refused []string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "/"+r.Header.Get("Authorization"))
		w.WriteHeader(http.StatusUnauthorized)
		_ = r.Header.Write(w)
	}))
	t.Cleanup(server.Close)
	dir := t.TempDir()
	write := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	key, place := write("key", hookSecret+"\n"), "127.0.0.1/hunter2?token="+escaped
	answering := strings.Replace(place, "127.0.0.1", server.Listener.Addr().String(), 1)
	settings := "&allow=127.0.0.1&secret-file=" + key
	list := write("endpoints.yml", "endpoints:\n  - {url: 'http://"+answering+"', secret_file: "+key+", authorization_file: "+password+", allow: 127.0.0.1}\n")
	waiting = []string{
		"https://u:" + escaped + "@" + place + "#name=away" + settings,
		"http://u:" + escaped + "@" + answering + "#name=answering" + settings,
		"http://" + answering + "#authorization-file=" + password + settings,
		"webhooks:" + list,
	}
	bad := write("bad", "whsec_hunter2")
	refused = []string{
		"https://u:" + escaped + "@" + place + "#secret-file=" + bad,
		"webhooks:" + write("bad.yml", "endpoints:\n  - {url: 'https://u:"+escaped+"@"+place+"', secret_file: "+bad+"}\n"),
	}
	return waiting, refused
}
