package claim_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/claim"
)

// bodies has payloads by the ids of their messages. In a service it is a pgstore.Bodies.
type bodies map[string][]byte

func (b bodies) Fetch(_ context.Context, ref claim.Ref) ([]byte, error) {
	if payload, ok := b[ref.ID]; ok {
		return payload, nil
	}
	return nil, claim.ErrGone
}

func ExampleNewOpener() {
	const id = "01890a5d-ac96-774b-bcce-b302099a8057"
	large := bytes.Repeat([]byte("x"), 1<<20)
	stored := bodies{id: large}

	// What the relay does with a payload above its limit: it sends the message without it.
	ref := claim.Ref{Schema: "postrider", Lane: 17, Seq: 4711, ID: id, Bytes: len(large), SHA256: sha256.Sum256(large)}
	sent := claim.Without(postrider.Message{ID: id, Topic: "scans", Key: "s-1", Payload: large}, ref.String())

	opener := claim.NewOpener(stored, nil) // for consumer.Options.Opener
	opened, err := opener.Open(context.Background(), sent)
	fmt.Println(len(sent.Payload), len(opened.Payload), err)
	// Output: 0 1048576 <nil>
}
