package redisbroker_test

import (
	"crypto/rand"
	"testing"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/internal/testserver"
)

// TestNoTransactions: a server that denies this user transactions
// executes the commands after a refused MULTI one by one. The sink sends it
// nothing: accepted messages would be reported as refused, and sent again and again.
func TestNoTransactions(t *testing.T) {
	t.Parallel()
	addr := testserver.SharedRedis(t, testserver.Redis8).Addr
	ask(t, addr, "ACL", "SETUSER", "single", "on", ">secret", "~*", "+@all", "-multi")
	sink := open(t, "redis://single:secret@"+addr)
	topic := "singly" + rand.Text()
	for range 3 {
		for _, err := range sink.Deliver(t.Context(), broker.Batch{Messages: numbered(topic, "k", 1, 3)}) {
			class(t, err, broker.ClassOutage, "NOPERM")
		}
	}
	if got := held(t, addr, topic); len(got) > 0 {
		t.Errorf("%d messages were accepted", len(got))
	}
	ask(t, addr, "ACL", "SETUSER", "single", "+multi")
	if errs := sink.Deliver(t.Context(), broker.Batch{Messages: numbered(topic, "k", 1, 3)}); errs != nil {
		t.Errorf("with the permission: %v", errs)
	}
}
