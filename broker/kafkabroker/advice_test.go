package kafkabroker

import (
	"strings"
	"testing"
)

func TestWeakTopics(t *testing.T) {
	for _, c := range []struct {
		replicas int
		configs  map[string]string
		want     string
	}{
		{3, map[string]string{"min.insync.replicas": "2", "unclean.leader.election.enable": "false", "cleanup.policy": "delete"}, ""},
		{3, nil, ""}, // may not be read
		{1, map[string]string{"min.insync.replicas": "1"}, "has one replica"},
		{3, map[string]string{"min.insync.replicas": "1"}, "3 replicas and min.insync.replicas=1"},
		{2, map[string]string{"min.insync.replicas": "2"}, "2 replicas and min.insync.replicas=2"},
		{3, map[string]string{"min.insync.replicas": "2", "unclean.leader.election.enable": "true"}, "unclean"},
		{3, map[string]string{"min.insync.replicas": "2", "cleanup.policy": "compact"}, "compacted"},
	} {
		var said []string
		for _, a := range weak("orders", c.replicas, c.configs) {
			said = append(said, a.What)
			if a.Why == "" || a.Fix == "" {
				t.Errorf("no reason or remedy: %+v", a)
			}
		}
		if text := strings.Join(said, "; "); (c.want == "") != (text == "") || !strings.Contains(text, c.want) {
			t.Errorf("%d replicas, %v: %q, want %q", c.replicas, c.configs, text, c.want)
		}
	}
}
