package causes

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// The looks before the expressions change no result.
func TestNormalisedIsThatOfAllExpressions(t *testing.T) {
	parts := []string{"0190aaaa-0000-7000-8000-000000000001", "0x1234ABCD", "deadbeef", "deadbee", `"a 7"`, "'x", "'", `"`, "404", "10.0.0.1:80", "571 bytes", " ", "-", "g", "answer"}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		var b strings.Builder
		for range rng.IntN(8) {
			b.WriteString(parts[rng.IntN(len(parts))])
		}
		text := b.String()
		want := text
		for _, what := range []interface {
			ReplaceAllString(string, string) string
		}{uuidIn, quotedIn, hexIn} {
			want = what.ReplaceAllString(want, differing)
		}
		want = digitsIn.ReplaceAllStringFunc(want, func(found string) string {
			if tellsIn.MatchString(found) {
				return found
			}
			return differing
		})
		if got := normalised(text); got != want {
			t.Fatalf("%q becomes %q, want %q", text, got, want)
		}
	}
}

func BenchmarkNormalised(b *testing.B) {
	for i := range b.N {
		normalised(fmt.Sprint("message of ", 1_000_000+i, " bytes exceeds max.message.bytes"))
	}
}
