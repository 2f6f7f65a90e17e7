package claim_test

import (
	"crypto/sha256"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/claim"
)

func TestRef(t *testing.T) {
	want := claim.Ref{Schema: "postrider", Lane: 17, Seq: 4711, ID: "01890a5d-ac96-774b-bcce-b302099a8057", Bytes: 9, SHA256: sha256.Sum256([]byte("x"))}
	if got, err := claim.Parse(want.String()); err != nil || got != want {
		t.Errorf("%s came back as %+v, %v", want, got, err)
	}
	sum := want.String()[len(want.String())-64:]
	for _, bad := range []string{
		"", "https://elsewhere/1", "postrider:a/1/2/id", "postrider:a/1/id?bytes=1&sha256=" + sum, "postrider:a/x/2/id?bytes=1&sha256=" + sum,
		"postrider:a/1/2/id?bytes=-1&sha256=" + sum, "postrider:a/1/2/id?bytes=1&sha256=ab", "postrider:/1/2/id?bytes=1&sha256=" + sum, "postrider:a/1/2/?bytes=1&sha256=" + sum,
	} {
		if got, err := claim.Parse(bad); err == nil {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(claim.Ref{Schema: "a", ID: "b"}.String())
	f.Fuzz(func(t *testing.T, s string) {
		r, err := claim.Parse(s)
		if err != nil {
			t.Skip()
		}
		if again, err := claim.Parse(r.String()); err != nil || again != r {
			t.Errorf("%q is %+v, and that %+v, %v", s, r, again, err)
		}
	})
}

func TestPolicy(t *testing.T) {
	p := claim.Policy{Schema: "s", Above: 3, MaxAge: time.Hour}
	now := time.Now()
	for _, tc := range []struct {
		name string
		m    postrider.Message
		want bool
	}{
		{"at the limit", postrider.Message{Payload: []byte("abc"), Time: now}, false},
		{"above", postrider.Message{Payload: []byte("abcd"), Time: now}, true},
		{"too old to leave it", postrider.Message{Payload: []byte("abcd"), Time: now.Add(-2 * time.Hour)}, false},
		{"of no known age", postrider.Message{Payload: []byte("abcd")}, false},
	} {
		if got := p.Ref(1, 2, &tc.m); (got != "") != tc.want {
			t.Errorf("%s: %q", tc.name, got)
		}
	}
	asked := 0
	p.Valid = func(m *postrider.Message) bool { asked++; return m.Type == "valid" }
	for typ, want := range map[string]bool{"valid": true, "invalid": false} {
		if got := p.Ref(1, 2, &postrider.Message{Type: typ, Payload: []byte("abcd"), Time: now}); (got != "") != want {
			t.Errorf("%s: %q", typ, got)
		}
	}
	if p.Ref(1, 2, &postrider.Message{Payload: []byte("abc"), Time: now}); asked != 2 {
		t.Errorf("%d payloads were validated, 2 could stay", asked)
	}
}
