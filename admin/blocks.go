package admin

import (
	"context"
	"fmt"

	"github.com/postrider/postrider/internal/plural"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// Block is the first dead letter of a lane that holds its key: later messages of the key
// wait until a person acts.
type Block struct {
	Pipe    string
	Seq     int64
	Key     string
	Waiting int64 // messages set aside behind it, counted up to ops.KeyCount
	Keys    int   // of the lane that dead letters hold, as far as Blocks looked
}

// blocksLooked is how many dead letters Blocks looks at, the first by number.
const blocksLooked = 1000

// Blocks returns the dead letters that hold keys, by lane. It reads no payload, and looks
// at the first 1,000 dead letters.
func Blocks(ctx context.Context, ad ops.Admin, st *ops.Status) (map[store.Lane]Block, error) {
	if st.Parked[store.Dead.String()] == 0 {
		return nil, nil
	}
	dead, err := ad.Parked(ctx, ops.ParkedQuery{State: store.Dead, Limit: blocksLooked, Bare: true})
	if err != nil {
		return nil, fmt.Errorf("look for keys behind dead letters: %w", err)
	}
	blocks := map[store.Lane]Block{}
	for i := range dead {
		d := &dead[i]
		if !d.Captures || d.Message.Key == "" {
			continue
		}
		b, ok := blocks[d.Lane]
		if !ok {
			b = Block{Pipe: st.Pipe, Seq: d.Seq, Key: d.Message.Key}
			behind, err := ad.Parked(ctx, ops.ParkedQuery{State: store.Waiting, Key: b.Key, Limit: ops.KeyCount, Bare: true})
			if err != nil {
				return nil, fmt.Errorf("look for keys behind dead letters: %w", err)
			}
			b.Waiting = int64(len(behind))
		}
		b.Keys++
		blocks[d.Lane] = b
	}
	return blocks, nil
}

// Retry is the command that sends the dead letter again.
func (b Block) Retry() string {
	return ops.ForPipe(fmt.Sprintf("postrider dead retry %d --reason WHY", b.Seq), b.Pipe)
}

// String tells what waits behind the dead letter, and what a person does.
func (b Block) String() string {
	text := fmt.Sprintf("dead letter %d holds key %s", b.Seq, b.Key)
	if b.Waiting > 0 {
		bound := ""
		if b.Waiting >= ops.KeyCount {
			bound = "at least "
		}
		text = bound + plural.Of(b.Waiting, "message", "messages") + fmt.Sprintf(" of key %s behind dead letter %d", b.Key, b.Seq)
	}
	if b.Keys > 1 {
		text += ", and " + plural.Of(b.Keys-1, "more key behind another", "more keys behind others")
	}
	return text + ": `" + b.Retry() + "`, or discard"
}
