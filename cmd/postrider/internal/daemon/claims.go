package daemon

import (
	"cmp"
	"time"

	"github.com/spf13/pflag"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/claim"
	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/store/pgstore"
)

// ClaimFlag declares which payloads stay in the database.
func (r *Engine) ClaimFlag(fs *pflag.FlagSet) {
	fs.Var(&r.ClaimAbove, "claim-above", "payloads above this stay in the database for consumers to fetch, such as 512KiB; 0: all travel (PostgreSQL)")
	config.MarkAll(fs, "claim-above")
}

// leastClaimTime is how long a payload that a consumer must fetch has to stay.
const leastClaimTime = time.Hour

// claims says which payloads stay in the database; nil for none. They stay no
// longer than their rows do, so what is half as old as that travels whole.
func (r *Engine) claims(set *open.Settings, keeps *admin.KeeperOptions) (*claim.Policy, error) {
	if r.ClaimAbove == 0 {
		return nil, nil
	}
	if kind := set.Kind(); kind != "postgres" && kind != "postgresql" {
		return nil, exit.Usagef("claim-above needs a store on PostgreSQL, where consumers can fetch payloads")
	}
	p := &claim.Policy{Schema: cmp.Or(set.Schema, pgstore.DefaultSchema), Above: int(r.ClaimAbove)}
	stay, known := keeps.OlderThan, !keeps.Off
	if keeps.Payloads > 0 && (!known || keeps.Payloads < stay) {
		stay, known = keeps.Payloads, true
	}
	if !known {
		return p, nil
	}
	if stay < leastClaimTime {
		return nil, exit.Usagef("claim-above leaves payloads for consumers to fetch, and retention removes them after %s: let them stay for %s at least", stay, leastClaimTime)
	}
	p.MaxAge = stay / 2
	return p, nil
}
