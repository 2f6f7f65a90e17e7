package redisbroker

// FetchScript is what a source reads with.
const FetchScript = fetchScript
