package org.rmqlog.spark;

import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;

/**
 * Makes unique keys as clients do: address, process, a random number, time in the month, counter.
 * A counter that is used up takes the next millisecond, so no key comes twice.
 */
final class UniqKeys {
  private static final int COUNTER_BITS = 16;
  private static final int COUNTER_MASK = (1 << COUNTER_BITS) - 1;
  private static final byte[] DIGITS = "0123456789ABCDEF".getBytes(StandardCharsets.US_ASCII);
  private static final int DIGIT_BITS = 4;
  private static final int DIGIT_MASK = (1 << DIGIT_BITS) - 1;
  private static final int COUNTER_DIGITS = COUNTER_BITS / DIGIT_BITS;

  private final String maker;
  private final long monthStartMs;
  private final int seed;
  /** The last key. Until its millisecond is used up only the counter at its end changes. */
  private byte[] key;
  /** The hash of what is hashed in front of a key, and of all of it but the counter. */
  private int prefixHash;
  /** Milliseconds, and behind them the counter, of the last key. */
  private long last;

  /** {@code seed} is the hash of what is hashed in front of each key. */
  UniqKeys(StagingRecipe.UniqKeys recipe, int seed) {
    long process = ProcessHandle.current().pid() & 0xFFFF;
    int salt = new SecureRandom().nextInt();
    this.maker = recipe.address() + String.format("%04X%08X", process, salt);
    this.monthStartMs = recipe.monthStartMs();
    this.seed = seed;
    begin(System.currentTimeMillis());
  }

  int size() {
    return key.length;
  }

  /** The key that {@link #next} made. */
  byte[] bytes() {
    return key;
  }

  /** Makes a new key, and returns the hash of it with what is hashed in front. */
  int next() {
    last++;
    if ((last & COUNTER_MASK) == 0) {
      begin(Math.max(System.currentTimeMillis(), last >> COUNTER_BITS));
    }
    int position = key.length - COUNTER_DIGITS;
    int hash = prefixHash;
    for (int shift = COUNTER_BITS - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
      byte digit = DIGITS[(int) (last >> shift) & DIGIT_MASK];
      key[position++] = digit;
      hash = 31 * hash + digit;
    }
    return hash;
  }

  /** Goes on with the first key of a millisecond. */
  private void begin(long timeMs) {
    last = timeMs << COUNTER_BITS;
    String prefix = maker + String.format("%08X", (int) (timeMs - monthStartMs));
    prefixHash = seed;
    for (char letter : prefix.toCharArray()) {
      prefixHash = 31 * prefixHash + letter;
    }
    key = (prefix + "0".repeat(COUNTER_DIGITS)).getBytes(StandardCharsets.US_ASCII);
  }
}
