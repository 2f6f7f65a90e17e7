package asciijson_test

import (
	"encoding/json"
	"maps"
	"testing"

	"github.com/postrider/postrider/broker/internal/asciijson"
)

func TestOf(t *testing.T) {
	headers := map[string]string{"b": "ü <&> \"", "a": "😀\x00\x7f\n", "": ""}
	text := asciijson.Of(headers)
	if want := `{"":"","a":"\ud83d\ude00\u0000\u007f\n","b":"\u00fc <&> \""}`; text != want {
		t.Errorf("%s, want %s", text, want)
	}
	var back map[string]string
	if err := json.Unmarshal([]byte(text), &back); err != nil || !maps.Equal(back, headers) {
		t.Errorf("read back as %q, %v", back, err)
	}
}
