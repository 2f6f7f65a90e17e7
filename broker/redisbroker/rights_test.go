package redisbroker_test

import (
	"crypto/rand"
	"strings"
	"testing"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/redisbroker"
	"github.com/postrider/postrider/internal/testserver"
)

// TestRights: the rights in the README are enough.
func TestRights(t *testing.T) {
	t.Parallel()
	for _, version := range testserver.RedisVersions() {
		t.Run(version, func(t *testing.T) {
			addr, topic := testserver.SharedRedis(t, version).Addr, "rights"+rand.Text()
			as := func(rules string) (url string) {
				user := rand.Text()
				ask(t, addr, append([]string{"ACL", "SETUSER", user, "on", ">secret"}, strings.Fields(rules)...)...)
				return "redis://" + user + ":secret@" + addr
			}
			sink := open(t, as("+multi +exec +xadd +info +ping +type ~"+topic))
			if missing, err := sink.Probe(t.Context(), []string{topic}); err != nil || missing[0] != nil {
				t.Fatal(missing, err)
			}
			if errs := sink.Deliver(t.Context(), broker.Batch{Messages: numbered(topic, "k", 1, 3)}); errs != nil {
				t.Fatal(errs)
			}
			reader := as("+@stream +@scripting +get +set +del +pexpire +zadd +zrem +zcard +zremrangebyscore +time +exists +info +ping ~" + topic + "*")
			src := source(t, reader, topic, redisbroker.SourceOptions{Group: "g", Delete: true})
			settle(t, src, receive(t, src, 3))
			if n := ask(t, addr, "XLEN", topic); n != int64(0) {
				t.Errorf("%v entries are left", n)
			}
			f := filter(t, strings.TrimPrefix(as("+set +info +ping ~postrider:seen:*"), "redis://"), redisbroker.FilterOptions{})
			if _, err := f.Seen(t.Context(), []string{topic}); err != nil {
				t.Error(err)
			}
		})
	}
}
