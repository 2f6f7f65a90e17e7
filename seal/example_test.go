package seal_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/seal"
)

// randomSecret is what a vault gives.
func randomSecret() []byte {
	b := make([]byte, seal.SecretSize)
	_, _ = rand.Read(b)
	return b
}

func Example() {
	current, err := seal.NewKey("2026-11", randomSecret())
	if err != nil {
		fmt.Println(err)
		return
	}
	ring, err := seal.NewRing(current)
	if err != nil {
		fmt.Println(err)
		return
	}
	box := seal.New(ring, nil) // for outbox.Options.Sealer and consumer.Options.Opener

	ctx := context.Background()
	m := postrider.Message{ID: "01890a5d-ac96-774b-bcce-b302099a8057", Topic: "customers", Key: "c-42", Payload: []byte("Lindenstraße 7")}
	sealed, err := box.Seal(ctx, m)
	if err != nil {
		fmt.Println(err)
		return
	}
	opened, err := box.Open(ctx, sealed)
	fmt.Println(sealed.Headers[seal.HeaderKey], len(sealed.Payload)-len(m.Payload), string(opened.Payload), err)
	// Output: 2026-11 28 Lindenstraße 7 <nil>
}

// subjects has one key per person, found by the message's key. In a service it
// is a table beside the customers, with a small cache in front.
type subjects struct {
	mu   sync.Mutex
	keys map[string]seal.Key // by the message's key
}

// SealingKey makes a person's key with the first message about them.
func (s *subjects) SealingKey(_ context.Context, m *postrider.Message) (seal.Key, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, ok := s.keys[m.Key]; ok {
		return k, nil
	}
	k, err := seal.NewKey("k-"+rand.Text(), randomSecret()) // the id is public: it says nothing about the person
	if err == nil {
		s.keys[m.Key] = k
	}
	return k, err
}

// OpeningKey finds no key of a person who was erased.
func (s *subjects) OpeningKey(_ context.Context, id string, m *postrider.Message) (seal.Key, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, ok := s.keys[m.Key]; ok && k.ID() == id {
		return k, nil
	}
	return seal.Key{}, seal.ErrErased
}

// One key per person: to erase a person is to delete one key, and what was
// sealed with it is noise wherever it lies, also in backups and in the broker.
func ExampleKeys() {
	keys := &subjects{keys: map[string]seal.Key{}}
	box := seal.New(keys, nil)
	ctx := context.Background()
	m := postrider.Message{ID: "01890a5d-ac96-774b-bcce-b302099a8057", Topic: "customers", Key: "c-42", Payload: []byte("Lindenstraße 7")}
	sealed, err := box.Seal(ctx, m)
	if err != nil {
		fmt.Println(err)
		return
	}
	delete(keys.keys, "c-42")
	_, err = box.Open(ctx, sealed)
	fmt.Println(err != nil)
	// Output: true
}

// A Box seals for the outbox and opens for the consumer.
func ExampleNew() {
	current, err := seal.ParseKey("2026-11:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=") // from the environment
	if err != nil {
		fmt.Println(err)
		return
	}
	ring, err := seal.NewRing(current)
	if err != nil {
		fmt.Println(err)
		return
	}
	box := seal.New(ring, nil)
	ob := outbox.New(dialect.Postgres, &outbox.Options{Sealer: box})
	opts := &consumer.Options{Name: "billing", Opener: box}
	_, _ = ob, opts
}

// To rotate, a new key first opens everywhere; then it seals.
func ExampleNewRing() {
	older, err := seal.NewKey("2026-11", randomSecret())
	if err != nil {
		fmt.Println(err)
		return
	}
	newer, err := seal.NewKey("2027-02", randomSecret())
	if err != nil {
		fmt.Println(err)
		return
	}
	before, err := seal.NewRing(older, newer)
	if err != nil {
		fmt.Println(err)
		return
	}
	after, err := seal.NewRing(newer, older)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, ring := range []*seal.Ring{before, after} {
		k, err := ring.SealingKey(context.Background(), nil)
		fmt.Println(k.ID(), err)
	}
	// Output:
	// 2026-11 <nil>
	// 2027-02 <nil>
}

// A key prints as its public name, never as its secret.
func ExampleNewKey() {
	key, err := seal.NewKey("2026-11", randomSecret()) // in a service: 32 random bytes from a vault
	fmt.Println(key, err)
	// Output: key 2026-11 <nil>
}

func ExampleParseKey() {
	key, err := seal.ParseKey("2026-11:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")
	fmt.Println(key.ID(), err)
	// Output: 2026-11 <nil>
}
