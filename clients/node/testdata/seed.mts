// Code that was written for the three functions of the original design compiles with the module's types.
import { Firestore } from '@google-cloud/firestore';
import { analysisLocks } from '../lock.mjs';

type Original = {
  acquireAnalysisLock(analysisId: string, lockOwner: string, ttlSec?: number): Promise<{ acquired: boolean; reason?: string }>;
  releaseAnalysisLock(analysisId: string, lockOwner: string): Promise<void>;
  refreshAnalysisLock(analysisId: string, lockOwner: string, ttlSec?: number): Promise<void>;
};

export const locks: Original = analysisLocks(new Firestore());
