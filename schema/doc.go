// Package schema decodes the old versions of a message as its newest one, and refuses
// a version that the program does not know.
//
//	var placed = schema.Then(schema.Then(schema.Begin[PlacedV1](), v1to2), v2to3) // Chain[PlacedV3]
//	consumer.HandleChain(c, "order.placed", placed, func(ctx context.Context, tx *sql.Tx, e PlacedV3) error { ... })
//
// A version is the number in [postrider.Message.SchemaVersion]. A chain has one type
// per version and one function, an upcaster, from each version to the next. A chain
// with a gap or in a wrong order does not compile, and one that uses a type
// twice is refused when its consumer starts.
//
// Messages outlive the programs that wrote them: a replay, a dead letter or a stashed
// message brings back an old version, and while a deploy rolls two versions are
// written at once. Upcasters run before the handler. What is kept of a message, such
// as a dead letter, keeps its original bytes and version.
package schema
