package private

import (
	"github.com/postrider/postrider/internal/faultproxy"
	"github.com/postrider/postrider/internal/lab/brokers"
	"github.com/postrider/postrider/internal/testserver"
)

// PubSubProject has the topics of an emulator.
const PubSubProject = "lab-project"

// PubSub describes a running emulator behind a front that a kill ends.
func PubSub(s *testserver.PubSub) (*brokers.Broker, error) {
	proxy, err := faultproxy.New(s.Addr)
	if err != nil {
		return nil, err
	}
	b := brokers.PubSub(proxy.Addr(), PubSubProject)
	clients := b.Close
	b.URL, b.Process, b.PID = "pubsub://"+PubSubProject+"?emulator="+proxy.Addr(), &front{s, proxy}, s.PID
	b.Close = func() { clients(); _ = proxy.Close() }
	return b, nil
}

// front stands before an emulator that keeps its messages in memory only. A kill
// breaks every connection with the requests on it, as the end of a managed service's
// front end does: the stored messages survive. Freeze stops the emulator itself.
type front struct {
	brokers.Process
	proxy *faultproxy.Proxy
}

// Kill resets all connections and refuses new ones until Restart.
func (f *front) Kill() error { f.proxy.Cut(0); return nil }

// Stop is Kill.
func (f *front) Stop() error { return f.Kill() }

// Restart accepts connections again.
func (f *front) Restart() error { f.proxy.Restore(); return nil }
