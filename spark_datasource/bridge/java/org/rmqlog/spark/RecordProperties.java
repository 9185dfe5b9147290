package org.rmqlog.spark;

import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/**
 * The properties of one record after the other, with the hashes of what the index has of it: its
 * unique key, each token of its keys, its tag. All of them are Java's hashes of strings.
 */
final class RecordProperties {
  private static final byte FIRST_SEPARATOR = 1;
  private static final byte LAST_SEPARATOR = 2;
  private static final byte KEY_SEPARATOR = ' ';

  private final StagingRecipe.Columns columns;
  private final StagingRecipe.Prefixes prefixes;
  private final UniqKeys uniqKeys;
  private final int keySeed;
  private final int tagSeed;
  private final boolean indexesTags;
  private final int largestSize;

  private RowBytes row;
  private int keysSize;
  private int tagsSize;
  private int uniqKeySize;
  private int size;
  /** The first one is of the unique key. */
  private int[] hashes = new int[16];
  private int hashCount;
  private int tagsCode;

  RecordProperties(StagingRecipe recipe) {
    StagingRecipe.Index index = recipe.index();
    this.columns = recipe.columns();
    this.prefixes = recipe.prefixes();
    this.keySeed = index.keyPrefix().hashCode();
    this.indexesTags = index.tagPrefix() != null;
    this.tagSeed = indexesTags ? index.tagPrefix().hashCode() : 0;
    this.uniqKeys = new UniqKeys(recipe.uniqKeys(), keySeed);
    this.largestSize = recipe.limits().properties();
  }

  int size() {
    return size;
  }

  int hashCount() {
    return hashCount;
  }

  int hash(int number) {
    return hashes[number];
  }

  /** The hash of the tag; 0 without one. */
  int tagsCode() {
    return tagsCode;
  }

  /**
   * Takes the texts of a row; an empty one is the same as none, and a unique key is made. False
   * where one has a byte that it must not have, or all of them are too long.
   */
  boolean read(RowBytes given) {
    row = given;
    keysSize = row.size(columns.keys());
    tagsSize = row.size(columns.tags());
    uniqKeySize = row.size(columns.uniqKey());
    long sum = sizeOf(prefixes.keys(), keysSize) + sizeOf(prefixes.tags(), tagsSize)
        + sizeOf(prefixes.uniqKey(), uniqKeySize == 0 ? uniqKeys.size() : uniqKeySize);
    if (sum > largestSize) {
      return false;
    }
    size = (int) sum;
    hashCount = 1;
    tagsCode = 0;
    return (keysSize == 0 || hashKeys(row.bytes(), row.start(columns.keys())))
        && (tagsSize == 0 || hashTag(row.bytes(), row.start(columns.tags())))
        && hashUniqKey();
  }

  /** Puts the properties of the row that was read. */
  void putInto(RecordBytes target) {
    if (keysSize > 0) {
      put(target, prefixes.keys(), row.bytes(), row.start(columns.keys()), keysSize);
    }
    if (tagsSize > 0) {
      put(target, prefixes.tags(), row.bytes(), row.start(columns.tags()), tagsSize);
    }
    if (uniqKeySize > 0) {
      put(target, prefixes.uniqKey(), row.bytes(), row.start(columns.uniqKey()), uniqKeySize);
    } else {
      put(target, prefixes.uniqKey(), uniqKeys.bytes(), 0, uniqKeys.size());
    }
  }

  private void put(RecordBytes target, byte[] prefix, byte[] value, int start, int length) {
    target.put(prefix);
    target.put(value, start, length);
    target.putByte(prefixes.end());
  }

  private static long sizeOf(byte[] prefix, int valueSize) {
    return valueSize == 0 ? 0 : (long) prefix.length + valueSize + 1;
  }

  private boolean hashKeys(byte[] bytes, int start) {
    int end = start + keysSize;
    int hash = keySeed;
    int token = start;
    for (int position = start; position < end; position++) {
      byte value = bytes[position];
      if (value <= LAST_SEPARATOR && value != 0) {
        return value < 0 && hashWideKeys(start);
      }
      if (value == KEY_SEPARATOR) {
        addToken(hash, position - token);
        hash = keySeed;
        token = position + 1;
      } else {
        hash = 31 * hash + value;
      }
    }
    addToken(hash, end - token);
    return true;
  }

  /** The same for keys that are not all ASCII: hashes go over UTF-16 units. */
  private boolean hashWideKeys(int start) {
    String text = decode(start, keysSize);
    if (text == null) {
      return false;
    }
    hashCount = 1;
    for (String token : text.split(" ")) {
      addToken(hash(keySeed, token), token.length());
    }
    return true;
  }

  private boolean hashTag(byte[] bytes, int start) {
    int hash = 0;
    int indexHash = tagSeed;
    for (int position = start; position < start + tagsSize; position++) {
      byte value = bytes[position];
      if (value <= LAST_SEPARATOR && value != 0) {
        return value < 0 && hashWideTag(start);
      }
      hash = 31 * hash + value;
      indexHash = 31 * indexHash + value;
    }
    addTag(hash, indexHash);
    return true;
  }

  private boolean hashWideTag(int start) {
    String text = decode(start, tagsSize);
    if (text == null) {
      return false;
    }
    addTag(text.hashCode(), hash(tagSeed, text));
    return true;
  }

  private boolean hashUniqKey() {
    if (uniqKeySize == 0) {
      hashes[0] = absolute(uniqKeys.next());
      return true;
    }
    String text = decode(row.start(columns.uniqKey()), uniqKeySize);
    if (text == null) {
      return false;
    }
    hashes[0] = absolute(hash(keySeed, text));
    return true;
  }

  /** A text of the row as a string; null where it is malformed or has a separator. */
  private String decode(int start, int length) {
    byte[] bytes = row.bytes();
    for (int position = start; position < start + length; position++) {
      if (bytes[position] == FIRST_SEPARATOR || bytes[position] == LAST_SEPARATOR) {
        return null;
      }
    }
    try {
      ByteBuffer text = ByteBuffer.wrap(bytes, start, length);
      return StandardCharsets.UTF_8.newDecoder().decode(text).toString();
    } catch (CharacterCodingException malformed) {
      return null;
    }
  }

  private void addToken(int hash, int length) {
    if (length > 0) {
      addHash(hash);
    }
  }

  private void addTag(int hash, int indexHash) {
    tagsCode = hash;
    if (indexesTags) {
      addHash(indexHash);
    }
  }

  private void addHash(int hash) {
    if (hashCount == hashes.length) {
      hashes = Arrays.copyOf(hashes, 2 * hashCount);
    }
    hashes[hashCount++] = absolute(hash);
  }

  private static int hash(int seed, String text) {
    int hash = seed;
    for (int index = 0; index < text.length(); index++) {
      hash = 31 * hash + text.charAt(index);
    }
    return hash;
  }

  /** As brokers do: never negative, and 0 for the one number that has no opposite. */
  private static int absolute(int hash) {
    return Math.max(Math.abs(hash), 0);
  }
}
