package causes_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/internal/causes"
	"github.com/postrider/postrider/store/ops"
)

func letter(seq int64, key, code, text string) ops.ParkedRecord {
	return ops.ParkedRecord{
		Seq: seq, Captures: key != "", LastAttempt: time.Unix(seq, 0), Code: code, Error: text,
		Message: postrider.Message{Topic: "orders", Key: key},
	}
}

func TestOneCauseIsOneGroup(t *testing.T) {
	var g causes.Groups
	for i := range int64(6) { // what differs from message to message tells no causes apart
		g.Add([]ops.ParkedRecord{letter(i, fmt.Sprint("k", i/2), "400", fmt.Sprintf(`answer 400: field "f%d" of order 0190aaaa-0000-7000-8000-00000000000%d is too large (%d bytes)`, i, i, 1000+i))})
	}
	g.Add([]ops.ParkedRecord{
		letter(10, "", "", "answer 404: no such path"), letter(11, "", "", "answer 403: no such path"), // a status does
		letter(12, "", "", "17"),
	})
	got := g.Sorted()
	if len(got) != 4 {
		t.Fatalf("%d groups, want 4: %+v", len(got), got)
	}
	first := got[0]
	if first.N != 6 || first.Keys != 3 || first.Example.Seq != 0 || first.Newest.Unix() != 5 || first.Oldest.Unix() != 0 {
		t.Errorf("the largest group is %+v, want 6 letters of 3 keys", first)
	}
	if want := "answer 400: field "; first.Fragment != want || !first.Selects() {
		t.Errorf("the part that all errors have is %q, want %q", first.Fragment, want)
	}
	for _, other := range got[1:] {
		if other.N != 1 || other.Selects() != (other.Example.Seq != 12) {
			t.Errorf("group %+v", other)
		}
	}
}
