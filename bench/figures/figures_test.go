package figures

import "testing"

func TestPairs(t *testing.T) {
	six := []float64{0.99, 0.98, 1, 0.97, 1.01, 0.985}
	if p := Pairs(six); p.Low != 0.97 || p.High != 1.01 || p.Median != 0.99 || p.Verdict(0.97) != "holds" || p.Verdict(1.02) != "broken" {
		t.Errorf("%+v", p)
	}
	if p := Pairs(six[:5]); p.High != 0 || p.Verdict(0.5) == "holds" {
		t.Errorf("five rounds: %+v", p)
	}
	if p := Pairs(six); p.VerdictMost(1.01) != "holds" || p.VerdictMost(0.96) != "broken" || p.VerdictMost(1) == "holds" || Pairs(six[:5]).VerdictMost(2) == "holds" {
		t.Errorf("at most: %+v", p)
	}
	thirteen := []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}
	if p := Pairs(thirteen); p.Low != 3 || p.High != 11 || p.Median != 7 || p.Verdict(5) == "holds" {
		t.Errorf("%+v", p)
	}
}
