package open

import (
	"context"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/store/memstore"
)

// memoryKind is a database and a broker inside this process, to try things.
func memoryKind() kind {
	return kind{schemes: []string{"memory"}, form: "memory:", store: openMemory, sink: openMemorySink}
}

func openMemorySink(set *Settings, _ string) (*Publisher, error) {
	router, err := set.Router()
	if err != nil {
		return nil, err
	}
	return &Publisher{Sink: membroker.New(&membroker.Options{Route: router}).Sink(), Close: func() {}}, nil
}

func openMemory(set *Settings, _ string) (*Outbox, error) {
	st := memstore.New(&memstore.Options{Lanes: set.Lanes})
	if set.Pipe != "" {
		st = st.Pipe(set.Pipe)
	}
	return &Outbox{
		Store: st, Office: st.Office(),
		Enqueue: func(ctx context.Context, msgs []postrider.Message) error { return st.Enqueue(ctx, msgs...) },
		Close:   func() {},
	}, nil
}
