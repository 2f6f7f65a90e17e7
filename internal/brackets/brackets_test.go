package brackets

import "testing"

func TestDepth(t *testing.T) {
	for text, want := range map[string]int{
		``: 0, `{}`: 1, `{{}}{`: 2, `"{{{" {`: 1, `'{\'{' {`: 1, "// {{\n{": 1, `/* {{ */ {`: 1, `}}}{`: 1, `[({<`: 4, `/* {`: 0, `// {`: 0, "\"{\n{": 1,
	} {
		if got := Depth([]byte(text)); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}
