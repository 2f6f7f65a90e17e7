package main

import (
	"strings"
	"testing"
)

// A workload that a store cannot run is refused before a server starts.
func TestStoresAreRefusedAtOnce(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"run", "tenants", "--store", "mysql-9.7"}, "workload tenants cannot run on mysql-9.7: leave out --store, or use one of w1, latency, idle, enqueue, consume"},
		{[]string{"run", "W6", "--store", "mariadb-11.8"}, "workload W6 cannot run on mariadb-11.8"},
		{[]string{"run", "W1", "--store", "oracle"}, `unknown store "oracle": use postgres, mysql-9.7, mariadb-10.11, mariadb-11.8`},
	} {
		if err := run(t.Context(), c.args); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("bench %s: %v, want %q", strings.Join(c.args, " "), err, c.want)
		}
	}
}
