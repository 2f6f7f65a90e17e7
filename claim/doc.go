// Package claim leaves large payloads in the database and lets consumers fetch
// them there: the claim check pattern, the extension dataref of CloudEvents.
//
// The relay sends a message whose payload is above a limit without it, with the
// header postrider-dataref that names its place (in a CloudEvent the
// attribute dataref). At the consumer an [Opener] fetches it before the handler
// runs:
//
//	bodies := pgstore.NewBodies(pool)
//	c := consumer.New(source, db, &consumer.Options{Name: "billing", Opener: claim.NewOpener(bodies, nil)})
//
// The payload stays as long as its row does: retention is what consumers have
// time for. One that is gone is [ErrGone], which counts as a failed attempt and
// ends as a dead letter of the consumer; one that was erased is acknowledged
// without an effect. A message that stood in the parked table for long, or is
// replayed, may have outlived half of the time that rows stay: it travels whole.
//
// Whoever fetches must be able to reach the outbox's database and may read all
// payloads there. That is a choice; a message that carries its payload needs neither.
package claim
