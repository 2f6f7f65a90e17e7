package plural

import "testing"

func TestOf(t *testing.T) {
	for want, got := range map[string]string{
		"0 messages":          Of(0, "message"),
		"1 message":           Of(1, "message"),
		"2 messages":          Of(int64(2), "message"),
		"1 entry is open":     Of(uint64(1), "entry is open", "entries are open"),
		"12 entries are open": Of(12, "entry is open", "entries are open"),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
