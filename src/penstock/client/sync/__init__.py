"""The SDK without `async`: each class is a twin of an asynchronous one, which runs on a background thread. Knows no protocol."""
