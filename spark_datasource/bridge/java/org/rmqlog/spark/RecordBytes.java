package org.rmqlog.spark;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * Records that are being made, one behind the other. An array of bytes on the heap: into one
 * outside of it each small piece takes longer, and a record consists of small pieces.
 */
final class RecordBytes {
  private static final VarHandle SHORT =
      MethodHandles.byteArrayViewVarHandle(short[].class, ByteOrder.BIG_ENDIAN);
  private static final VarHandle INT =
      MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.BIG_ENDIAN);
  private static final VarHandle LONG =
      MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.BIG_ENDIAN);

  private byte[] bytes;
  private int end;

  RecordBytes(int size) {
    this.bytes = new byte[size];
  }

  int end() {
    return end;
  }

  boolean hasRoom(int size) {
    return size <= bytes.length - end;
  }

  /** Forgets everything, and has room for so much. */
  void clear(int size) {
    end = 0;
    if (size > bytes.length) {
      bytes = new byte[size];
    }
  }

  ByteBuffer content() {
    return ByteBuffer.wrap(bytes, 0, end);
  }

  void setInt(int position, int value) {
    INT.set(bytes, position, value);
  }

  void setLong(int position, long value) {
    LONG.set(bytes, position, value);
  }

  void putByte(byte value) {
    bytes[end++] = value;
  }

  void putShort(short value) {
    SHORT.set(bytes, end, value);
    end += Short.BYTES;
  }

  void put(byte[] source) {
    put(source, 0, source.length);
  }

  void put(byte[] source, int start, int size) {
    System.arraycopy(source, start, bytes, end, size);
    end += size;
  }
}
