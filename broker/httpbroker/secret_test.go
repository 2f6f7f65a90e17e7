package httpbroker_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/broker/httpbroker"
)

// The vectors come from the specification's reference libraries.
const (
	vectorSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	vectorID     = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	vectorAt     = 1614265330
	vectorBody   = `{"test": 2432232314}`
	vectorV1     = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	vectorSeed   = "whsk_VEVTVFNJR05JTkdLRVlET05PVFVTRVRISVNGT1JBTlk="
	vectorV1a    = "v1a,tQ9V2XOqn7jL/DQenEFpqIugdBVtiMmER5mhSkXBNwM0mkATuDe6KYYUuxqtaiHeYGb7KaaBRdM5WqyeFiL8Ag=="
)

func secrets(t *testing.T, text string) []httpbroker.Secret {
	t.Helper()
	all, err := httpbroker.ParseSecrets(text)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestVectors(t *testing.T) {
	got, err := httpbroker.Sign(secrets(t, vectorSecret+"\n"+vectorSeed), vectorID, time.Unix(vectorAt, 999), []byte(vectorBody))
	if err != nil {
		t.Fatal(err)
	}
	if want := vectorV1 + " " + vectorV1a; got != want {
		t.Errorf("signatures\n%s\nwant\n%s", got, want)
	}
}

func TestVerify(t *testing.T) {
	at, stamp := time.Unix(vectorAt, 0), fmt.Sprint(vectorAt)
	other := "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
	for _, c := range []struct {
		name, secrets, id, stamp, signatures, body string
		now                                        time.Time
		ok                                         bool
	}{
		{"as signed", vectorSecret, vectorID, stamp, vectorV1, vectorBody, at, true},
		{"ed25519", vectorSeed, vectorID, stamp, vectorV1a, vectorBody, at, true},
		{"one of several secrets", other + " " + vectorSecret, vectorID, stamp, vectorV1, vectorBody, at, true},
		{"one of several signatures", vectorSecret, vectorID, stamp, "v9,AAAA v1,AAAA x " + vectorV1, vectorBody, at, true},
		{"behind a few others", vectorSecret, vectorID, stamp, strings.Repeat(vectorV1a+" ", 15) + vectorV1, vectorBody, at, true},
		{"behind very many others", vectorSecret, vectorID, stamp, strings.Repeat(vectorV1a+" ", 16) + vectorV1, vectorBody, at, false},
		{"almost too old", vectorSecret, vectorID, stamp, vectorV1, vectorBody, at.Add(5 * time.Minute), true},
		{"too old", vectorSecret, vectorID, stamp, vectorV1, vectorBody, at.Add(5*time.Minute + time.Second), false},
		{"from the future", vectorSecret, vectorID, stamp, vectorV1, vectorBody, at.Add(-5*time.Minute - time.Second), false},
		{"other body", vectorSecret, vectorID, stamp, vectorV1, vectorBody + " ", at, false},
		{"other id", vectorSecret, "msg_2", stamp, vectorV1, vectorBody, at, false},
		{"other time", vectorSecret, vectorID, fmt.Sprint(vectorAt + 1), vectorV1, vectorBody, at, false},
		{"other secret", other, vectorID, stamp, vectorV1, vectorBody, at, false},
		{"other version", vectorSecret, vectorID, stamp, "v1a" + vectorV1[2:], vectorBody, at, false},
		{"no signature", vectorSecret, vectorID, stamp, "", vectorBody, at, false},
		{"empty signature", vectorSecret, vectorID, stamp, "v1,", vectorBody, at, false},
		{"no id", vectorSecret, "", stamp, vectorV1, vectorBody, at, false},
		{"time with a sign of the times", vectorSecret, vectorID, "1614265330.0", vectorV1, vectorBody, at, false},
	} {
		err := httpbroker.Verify(secrets(t, c.secrets), c.id, c.stamp, c.signatures, []byte(c.body), c.now, 5*time.Minute)
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestVerifyKnowsItsParts: the signed text is id.timestamp.payload; another split of the
// same text does not verify.
func TestVerifyKnowsItsParts(t *testing.T) {
	at, stamp, mine := time.Unix(vectorAt, 0), fmt.Sprint(vectorAt), secrets(t, vectorSecret)
	signature, err := httpbroker.Sign(mine, "msg_1", at, []byte(stamp+`.{"forged":true}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := httpbroker.Verify(mine, "msg_1", stamp, signature, []byte(stamp+`.{"forged":true}`), at, time.Minute); err != nil {
		t.Error(err)
	}
	if httpbroker.Verify(mine, "msg_1."+stamp, stamp, signature, []byte(`{"forged":true}`), at, time.Minute) == nil {
		t.Error("the beginning of a payload passes for the timestamp")
	}
}

func TestSecretsThatAreNone(t *testing.T) {
	for _, text := range []string{
		"", "whsec_", "whsec_c2hvcnQ=", "whsec_####", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
		"whpk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", vectorSecret + " x", "sk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
	} {
		_, err := httpbroker.ParseSecrets(text)
		if err == nil {
			t.Errorf("%q is taken", text)
		} else if text != "" && strings.Contains(err.Error(), "MfKQ") {
			t.Errorf("the error repeats the secret: %v", err)
		}
	}
	s := secrets(t, vectorSecret)
	if text := fmt.Sprintf("%v %+v %#v %s", s, s, s, s[0]); strings.Contains(text, "49") || strings.Contains(text, "MfKQ") {
		t.Errorf("a secret prints as %s", text)
	}
}

// FuzzVerify: a signed request verifies, whatever other signatures it has, and does
// not verify after any change.
func FuzzVerify(f *testing.F) {
	f.Add(vectorID, int64(vectorAt), []byte(vectorBody), "v1,AAAA v2,", "x")
	f.Add("a", int64(0), []byte{}, "v1a, ,v1 v1,=", "")
	all := []string{vectorSecret, vectorSeed}
	f.Fuzz(func(t *testing.T, id string, seconds int64, payload []byte, beside, stamp string) {
		at := time.Unix(seconds, 0)
		if id == "" || strings.Contains(id, ".") || len(strings.Fields(beside)) > 8 || at.Unix() < -1<<40 || at.Unix() > 1<<40 {
			t.Skip()
		}
		for i, text := range all {
			mine, other := secrets(t, text), secrets(t, all[1-i])
			signature, err := httpbroker.Sign(mine, id, at, payload)
			if err != nil {
				t.Fatal(err)
			}
			verify := func(by []httpbroker.Secret, id, stamp, signatures string, payload []byte) error {
				return httpbroker.Verify(by, id, stamp, signatures, payload, at, time.Minute)
			}
			now := fmt.Sprint(seconds)
			if err := verify(append(other, mine...), id, now, beside+" "+signature, payload); err != nil {
				t.Errorf("as signed: %v", err)
			}
			for what, err := range map[string]error{
				"another secret":  verify(other, id, now, signature, payload),
				"another id":      verify(mine, id+"x", now, signature, payload),
				"another time":    verify(mine, id, fmt.Sprint(seconds+1), signature, payload),
				"another payload": verify(mine, id, now, signature, append(payload[:len(payload):len(payload)], 0)),
				"no signature":    verify(mine, id, now, beside, payload),
			} {
				if err == nil {
					t.Errorf("%s is taken for genuine", what)
				}
			}
			_ = verify(mine, id, stamp, beside, payload) // whatever comes
		}
	})
}
